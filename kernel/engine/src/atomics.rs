//! The atomics of `channel.rs`. Its loom model replaces this file by loom's atomics.

pub use core::cell::UnsafeCell;
pub use core::sync::atomic::{AtomicU32, Ordering};
