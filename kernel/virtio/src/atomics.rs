//! The atomics of `phase.rs` and `msix/pending.rs`. Their loom models replace this file by loom's atomics.

pub use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
