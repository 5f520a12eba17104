//! loom's atomics, for the code that the model compiles a second time.

pub use loom::sync::atomic::{AtomicBool, Ordering, fence};
pub use loom::thread::yield_now as pause;

/// An atomic for loom. loom treats a sequentially consistent access as an acquire or release one. That is weaker than
/// what the code asks for and the CPU gives. A fence on either side restores it.
#[derive(Debug, Default)]
pub struct AtomicU64(loom::sync::atomic::AtomicU64);

fn ordered<T>(access: impl FnOnce() -> T) -> T {
    fence(Ordering::SeqCst);
    let value = access();
    fence(Ordering::SeqCst);
    value
}

impl AtomicU64 {
    pub fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }
    pub fn load(&self, order: Ordering) -> u64 {
        ordered(|| self.0.load(order))
    }
    pub fn store(&self, value: u64, order: Ordering) {
        ordered(|| self.0.store(value, order));
    }
    pub fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        ordered(|| self.0.fetch_or(value, order))
    }
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        ordered(|| self.0.fetch_add(value, order))
    }
}
