//! The atomics of [`crate::mailbox`] and [`crate::descriptor`]. They are in one file, so that the model (model.rs) can
//! replace them by loom's.

pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
