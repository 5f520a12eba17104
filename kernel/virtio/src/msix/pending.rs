//! A pending bit between the engine's core, which raises an interrupt, and the guest's cores, which mask and unmask it.
//! An interrupt that is raised is sent exactly once, now or at unmasking. `model.rs` lets loom try every interleaving.

use super::atomics::{AtomicBool, Ordering};

/// Raises the interrupt. `masked` reads the masks, sequentially consistent. Returns:
/// - true: the caller sends it now.
/// - false: it is pending, or the other side sends it.
#[inline]
pub fn raise(pending: &AtomicBool, masked: impl Fn() -> bool) -> bool {
    if !masked() {
        return true;
    }
    pending.store(true, Ordering::SeqCst);
    // The guest may have unmasked between the check above and the store, and found no pending bit. Both sides store
    // first and load second, in one total order. So at least one of them sees the other. The swap lets only one of them
    // send.
    !masked() && pending.swap(false, Ordering::SeqCst)
}

/// Takes the pending bit. Call it after a write to a mask. Returns true if the interrupt was pending and is no longer
/// masked: the caller sends it now.
#[inline]
pub fn take(pending: &AtomicBool, masked: impl Fn() -> bool) -> bool {
    !masked() && pending.load(Ordering::SeqCst) && pending.swap(false, Ordering::SeqCst)
}
