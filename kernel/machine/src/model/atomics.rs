//! loom's atomics, for the files that the model compiles a second time.

pub use loom::sync::atomic::Ordering;
use loom::sync::atomic::fence;

fn ordered<T>(access: impl FnOnce() -> T) -> T {
    fence(Ordering::SeqCst);
    let value = access();
    fence(Ordering::SeqCst);
    value
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);
        impl $name {
            pub fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }
            pub fn load(&self, order: Ordering) -> $value {
                ordered(|| self.0.load(order))
            }
            pub fn store(&self, value: $value, order: Ordering) {
                ordered(|| self.0.store(value, order))
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                ordered(|| self.0.swap(value, order))
            }
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                ordered(|| self.0.fetch_or(value, order))
            }
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                ordered(|| self.0.fetch_and(value, order))
            }
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                ordered(|| self.0.compare_exchange(current, new, success, failure))
            }
        }
    };
}
atomic!(AtomicBool, bool);
atomic!(AtomicU8, u8);
atomic!(AtomicU64, u64);
