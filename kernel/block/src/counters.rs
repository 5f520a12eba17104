//! Counters of a block device, besides those that every device has.

virtio::counters! {
    /// Requests of one block device. Only the engine's core writes these counters. A request counts once, when it is
    /// completed.
    BlockCounters {
        /// Reads that succeeded.
        reads,
        /// Bytes that they gave to the guest.
        read_bytes,
        /// Writes that succeeded.
        writes,
        /// Bytes that they took from the guest.
        written_bytes,
        /// Flushes that succeeded.
        flushes,
        /// Discards that succeeded.
        discards,
        /// Requests to write zeroes that succeeded.
        zeroes,
        /// Bytes that discards and these requests named.
        unmapped_bytes,
        /// Requests for the device's serial number.
        identities,
        /// Requests that failed: refused by the check or by the storage (VIRTIO_BLK_S_IOERR).
        errors,
        /// Of these, requests that the storage has failed.
        storage_errors,
        /// Of these, flushes that failed without being tried, because writes were lost before (`flushes.rs`).
        flushes_refused,
        /// Requests of a type or with flags that the device does not have (VIRTIO_BLK_S_UNSUPP).
        unsupported,
        /// Times that a request had to wait because the storage or the table of requests in flight was full.
        busy,
    }
}
