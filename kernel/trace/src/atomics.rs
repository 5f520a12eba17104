//! The atomics of `ring.rs`. Its loom model replaces this file by loom's atomics.

pub use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Reads a word that only the caller's core changes.
#[inline]
pub fn own(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}
