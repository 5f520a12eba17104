//! Shows frames at an uplink to whoever watches ([`crate::watch`]).

use trace::Classes;
use trace::capture::Way;
use trace::frames::{FIRST_UPLINK, FIRST_UPLINK_CAUSE};

use crate::counters::{UplinkCounters, UplinkDrop};
use crate::watch::{EACH_FRAME, Seen, UplinkStep, Watch};

/// Who watches an uplink, and its number among those of the engine.
#[derive(Clone, Copy, Default)]
pub(crate) struct Watched {
    pub watch: Option<Watch>,
    pub number: usize,
}

impl Watched {
    /// Shows a frame of `len` bytes that the NIC has taken. `front`: its first bytes, in the host's own memory.
    #[inline(always)]
    pub(crate) fn sent(&self, len: u32, front: &[u8]) {
        if self.watch.is_some_and(|watch| watch.of(EACH_FRAME).is_some()) {
            self.show_sent(len, front);
        }
    }

    #[cold]
    #[inline(never)]
    fn show_sent(&self, len: u32, front: &[u8]) {
        self.given(&[len]);
        self.capture(Way::Out, None, len, front, None);
    }

    /// Shows a frame of `len` bytes to whoever captures. `at`: when it came, or `None` for now.
    pub(crate) fn capture(&self, way: Way, at: Option<u64>, len: u32, front: &[u8], dropped: Option<UplinkDrop>) {
        if let Some(watcher) = self.watch.and_then(|watch| watch.of(Classes::CAPTURES)) {
            let dropped = dropped.map(|drop| FIRST_UPLINK_CAUSE | drop as u8);
            let port = usize::from(FIRST_UPLINK).saturating_add(self.number);
            watcher.seen(&Seen { port, way, at, len, bytes: front, dropped });
        }
    }

    /// Shows frames of these lengths that the NIC has taken.
    #[inline(always)]
    pub(crate) fn given(&self, lengths: &[u32]) {
        if let Some(watcher) = self.watch.and_then(|watch| watch.of(Classes::FRAMES)) {
            watcher.at_uplink(self.number, UplinkStep::Given, lengths);
        }
    }

    /// Counts a frame of `len` bytes that was dropped, and shows it. `front`: the first bytes of a frame that was on its way out,
    /// for whoever captures.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_frame(&self, counters: &UplinkCounters, drop: UplinkDrop, len: u32, front: Option<&[u8]>) {
        drop.counter(counters).add(1);
        if let Some(watch) = self.watch {
            watch.watcher.at_uplink(self.number, UplinkStep::Dropped(drop), &[len]);
        }
        if let Some(front) = front {
            self.capture(Way::Out, None, len, front, Some(drop));
        }
    }
}
