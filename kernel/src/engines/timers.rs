//! An engine's clock: the TSC, the guests' timers that the engine watches, and the watchdog over the control core.

use super::delivery::Targets;
use crate::{arch::time, watchdog::OverControlCore};
use engine::clock::Clock;

/// The TSC, the timers of the targets' guests, and the control core.
pub struct TscAndTimers {
    targets: &'static Targets,
    control_core: OverControlCore,
}

impl TscAndTimers {
    /// The clock of an engine with these targets, which has a core of its own.
    pub fn new(targets: &'static Targets) -> Self {
        Self { targets, control_core: OverControlCore::new() }
    }
}

impl Clock for TscAndTimers {
    #[inline]
    fn now(&self) -> u64 {
        time::tsc()
    }

    #[inline]
    fn expire_timers(&self, now: u64) {
        self.targets.expire_timers(now);
        self.control_core.turn(now);
        #[cfg(feature = "read-memory")]
        crate::read_memory::serve(crate::arch::number::current());
    }
}
