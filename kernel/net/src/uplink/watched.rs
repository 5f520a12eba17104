//! Shows frames at an uplink to whoever watches ([`crate::watch`]).

use trace::Classes;

use crate::counters::{UplinkCounters, UplinkDrop};
use crate::watch::{UplinkStep, Watch};

/// Who watches an uplink, and its number among those of the engine.
#[derive(Clone, Copy, Default)]
pub(crate) struct Watched {
    pub watch: Option<Watch>,
    pub number: usize,
}

impl Watched {
    /// Shows frames of these lengths that the NIC has taken.
    #[inline(always)]
    pub(crate) fn given(&self, lengths: &[u32]) {
        if let Some(watcher) = self.watch.and_then(|watch| watch.of(Classes::FRAMES)) {
            watcher.at_uplink(self.number, UplinkStep::Given, lengths);
        }
    }

    /// Counts a frame of `len` bytes that was dropped, and shows it.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_frame(&self, counters: &UplinkCounters, drop: UplinkDrop, len: u32) {
        drop.counter(counters).add(1);
        if let Some(watch) = self.watch {
            watch.watcher.at_uplink(self.number, UplinkStep::Dropped(drop), &[len]);
        }
    }
}
