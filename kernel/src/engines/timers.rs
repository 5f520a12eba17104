//! An engine's clock: the TSC, and the guests' timers that the engine watches.

use super::delivery::Targets;
use crate::arch::time;
use engine::clock::Clock;

/// The TSC and the timers of the targets' guests.
pub struct TscAndTimers(pub &'static Targets);

impl Clock for TscAndTimers {
    #[inline]
    fn now(&self) -> u64 {
        time::tsc()
    }

    #[inline]
    fn expire_timers(&self, now: u64) {
        self.0.expire_timers(now);
        #[cfg(feature = "read-memory")]
        crate::read_memory::serve(crate::cores::current_index());
    }
}
