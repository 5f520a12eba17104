//! Counts frames that are dropped at a guest's port, and shows them to whoever watches. Nothing here runs for a frame that is
//! not dropped.

use virtio::counters::Counter;

use crate::bridge::Bridge;

/// Watches frames that are dropped. It runs on the engine's core, so it must neither wait nor allocate.
pub trait DropWatcher: Sync {
    /// A frame of `bytes` bytes was dropped at a port. `cause`: the number of its counter in [`Drops`](crate::counters::Drops),
    /// in the order of `iter`.
    fn dropped(&self, port: usize, cause: u8, bytes: u32);
}

impl Bridge {
    /// Counts a frame of `bytes` bytes that was dropped at a port. `cause` is one of the port's counters.
    #[inline(always)]
    pub(crate) fn drop_frame(&self, port: usize, cause: &Counter, bytes: u32) {
        cause.add(1);
        if self.drop_watcher.is_some() {
            self.show_drop(port, cause, bytes);
        }
    }

    /// Shows a frame that was dropped, and that is counted elsewhere.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_drop(&self, port: usize, cause: &Counter, bytes: u32) {
        if let Some(watcher) = self.drop_watcher
            && let Some(number) = self.counters(port).drops.position(cause)
        {
            // There are fewer than 256 causes.
            watcher.dropped(port, number as u8, bytes);
        }
    }
}
