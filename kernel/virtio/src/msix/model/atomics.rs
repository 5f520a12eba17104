//! The atomics for the model of `pending.rs`.
//!
//! loom treats a sequentially consistent access as acquire or release only, which is weaker than the code. So this flag
//! has a sequentially consistent fence before and after each access. That restores exactly the ordering that the code
//! asks for.

pub use loom::sync::atomic::Ordering;
use loom::sync::atomic::fence;

#[derive(Debug)]
pub struct AtomicBool(loom::sync::atomic::AtomicBool);

fn ordered<T>(access: impl FnOnce() -> T) -> T {
    fence(Ordering::SeqCst);
    let value = access();
    fence(Ordering::SeqCst);
    value
}

impl AtomicBool {
    pub fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }
    pub fn load(&self, order: Ordering) -> bool {
        ordered(|| self.0.load(order))
    }
    pub fn store(&self, value: bool, order: Ordering) {
        ordered(|| self.0.store(value, order))
    }
    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        ordered(|| self.0.swap(value, order))
    }
}
