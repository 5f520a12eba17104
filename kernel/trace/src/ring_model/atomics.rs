//! The atomics for the model of `ring.rs`: loom's, with fences that a fault can leave out.

#![allow(unsafe_code, reason = "a read that loom does not take for a step")]

use std::cell::Cell;

pub use loom::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Which fences are left out. loom runs all threads of a model on one thread of the system.
    pub static WITHOUT: Cell<Option<Ordering>> = const { Cell::new(None) };
}

/// A fence, unless the planted fault leaves it out.
pub fn fence(order: Ordering) {
    if WITHOUT.get() != Some(order) {
        loom::sync::atomic::fence(order);
    }
}

/// Reads a word that only the caller's thread changes. To loom this is no step: loom sees a store's conflict only with the
/// last step on its word, and the writer's own load would hide the reader's.
pub fn own(word: &AtomicU64) -> u64 {
    // SAFETY: only this thread stores to the word, so no store is concurrent. loom checks that.
    unsafe { word.unsync_load() }
}
