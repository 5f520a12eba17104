//! The atomics of [`crate::mailbox`] and [`crate::descriptor`], in one place so that the model check (model.rs) can put
//! loom's there.

pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
