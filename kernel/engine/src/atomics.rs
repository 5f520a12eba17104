//! What `phase.rs`, `slot.rs` and `msix/pending.rs` are made of; their models give them loom's instead.

pub use core::cell::UnsafeCell;
pub use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
