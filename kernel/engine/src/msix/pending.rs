//! A pending bit between the engine's core, which raises an interrupt, and the guest's cores, which mask and unmask it: what
//! is raised is sent exactly once, now or at the unmasking. `model.rs` lets loom try every interleaving.

use super::atomics::{AtomicBool, Ordering};

/// Raises: true, it is to be sent now; false, it is pending, or was pending and is sent by the other side. `masked` is a
/// sequentially consistent look at the masks.
#[inline]
pub fn raise(pending: &AtomicBool, masked: impl Fn() -> bool) -> bool {
    if !masked() {
        return true;
    }
    pending.store(true, Ordering::SeqCst);
    // The guest may have unmasked between the look above and the store, and have found no pending bit. Both sides store
    // first and look second in one total order, so at least one of them sees the other; the swap lets only one of them send.
    !masked() && pending.swap(false, Ordering::SeqCst)
}

/// After a mask has been written to: true, it was pending, is masked no longer, and is to be sent now.
#[inline]
pub fn take(pending: &AtomicBool, masked: impl Fn() -> bool) -> bool {
    !masked() && pending.load(Ordering::SeqCst) && pending.swap(false, Ordering::SeqCst)
}
