//! Once a second, between two turns, an engine's core reads its own speed and its own banks of machine checks. No other core can read them.

use crate::{
    arch::{number, time},
    machine_check::banks,
    speed::CoreSpeed,
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use engine::control::Errand;

/// Microseconds between two looks.
const PERIOD: u64 = 1_000_000;

/// What one engine's core reads, and when it does so next.
#[derive(Debug)]
pub struct CoreLook {
    /// The core's speed.
    pub speed: CoreSpeed,
    /// TSC of the next look. Only the control core uses it.
    next: AtomicU64,
}

impl CoreLook {
    pub fn new() -> Self {
        Self { speed: CoreSpeed::new(), next: AtomicU64::new(0) }
    }

    /// Whether it is time for a look.
    pub fn is_due(&self) -> bool {
        let now = time::tsc();
        let due = now >= self.next.load(Relaxed);
        if due {
            self.next.store(now.saturating_add(time::micros(PERIOD)), Relaxed);
        }
        due
    }
}

impl Errand for CoreLook {
    fn run(&self) {
        banks::poll(number::current());
        self.speed.look();
    }
}
