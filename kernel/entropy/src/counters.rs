//! What is counted of an entropy device, besides what is counted of every device.

virtio::counters! {
    /// What happened to the requests of one entropy device. The engine's core writes all of them.
    EntropyCounters {
        /// Requests that were completed with random bytes.
        requests,
        /// Random bytes that the guest was given.
        bytes,
        /// Requests that had to wait because the source had no bytes.
        starved,
    }
}
