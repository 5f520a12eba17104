//! The atomics for the model of `channel.rs`: loom's word, and a cell that loom watches.

pub use loom::sync::atomic::{AtomicU32, Ordering};

/// loom's cell with `core`'s interface. Each access counts as a store.
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub fn get(&self) -> *mut T {
        self.0.with_mut(|pointer| pointer)
    }
}
