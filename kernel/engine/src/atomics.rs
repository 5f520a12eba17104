//! What `phase.rs` and `slot.rs` are made of; `model.rs` gives them loom's instead.

pub use core::cell::UnsafeCell;
pub use core::sync::atomic::{AtomicU32, Ordering};
