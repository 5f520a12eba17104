//! An engine's clock, and the guests' timers that the engine watches.

/// An engine's clock.
pub trait Clock {
    /// The time in ticks, such as the TSC. Reading it has no side effect.
    fn now(&self) -> u64;

    /// Expires the guests' timers that are due at `now`. The engine calls this at the end of each turn and of each
    /// portion of a visit.
    fn expire_timers(&self, now: u64) {
        let _ = now;
    }
}

/// A clock without timers.
impl<F: Fn() -> u64> Clock for F {
    #[inline]
    fn now(&self) -> u64 {
        self()
    }
}
