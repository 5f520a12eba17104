//! Who sees frames that are dropped at guests' ports.

/// Watches frames that are dropped. It runs on the engine's core, so it must neither wait nor allocate.
pub trait DropWatcher: Sync {
    /// A frame of `bytes` bytes was dropped at a port. `cause`: the number of its counter in [`Drops`](crate::counters::Drops),
    /// in the order of `iter`.
    fn dropped(&self, port: usize, cause: u8, bytes: u32);
}
