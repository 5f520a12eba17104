//! Counts frames that are dropped at a guest's port, and shows them to whoever watches. Nothing here runs for a frame that is
//! not dropped.

use virtio::counters::Counter;

use crate::bridge::Bridge;
use crate::counters::PortCounters;

/// Watches frames that are dropped. It runs on the engine's core, so it must neither wait nor allocate.
pub trait DropWatcher: Sync {
    /// A frame of `bytes` bytes was dropped at a port. `cause`: the number of its counter in [`Drops`](crate::counters::Drops),
    /// in the order of `iter`.
    fn dropped(&self, port: usize, cause: u8, bytes: u32);
}

/// Where and why frames are dropped.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub watcher: Option<&'static dyn DropWatcher>,
    pub port: usize,
    /// The counters of that port.
    pub counters: &'static PortCounters,
    /// The one of the cause.
    pub cause: &'static Counter,
}

impl Site {
    /// Counts frames of these lengths in bytes, `count` in all. The lengths are not asked for if nobody watches.
    pub(crate) fn count(&self, count: u64, lengths: impl Iterator<Item = u32>) {
        self.cause.add(count);
        if let Some(watcher) = self.watcher
            && let Some(number) = self.counters.drops.position(self.cause)
        {
            // There are fewer than 256 causes.
            lengths.for_each(|bytes| watcher.dropped(self.port, number as u8, bytes));
        }
    }
}

impl Bridge {
    /// Why frames are dropped at a port. `cause` is one of the port's counters.
    pub(crate) const fn drop_site(
        &self,
        port: usize,
        counters: &'static PortCounters,
        cause: &'static Counter,
    ) -> Site {
        Site { watcher: self.drop_watcher, port, counters, cause }
    }

    /// Counts a frame of `bytes` bytes that was dropped at a port. `cause` is one of the port's counters.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_frame(&self, port: usize, cause: &'static Counter, bytes: u32) {
        self.drop_site(port, self.counters(port), cause).count(1, core::iter::once(bytes));
    }
}
