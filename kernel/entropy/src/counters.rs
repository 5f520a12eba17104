//! Counters of an entropy device, besides those that every device has.

virtio::counters! {
    /// Requests of one entropy device. Only the engine's core writes these counters.
    EntropyCounters {
        /// Requests that were completed with random bytes.
        requests,
        /// Random bytes that the guest got.
        bytes,
        /// Requests that had to wait because the source had no bytes.
        starved,
        /// Requests that had to wait because the guest's rate was used up.
        limited,
    }
}
