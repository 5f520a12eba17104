//! Counters of a port and of a console device, besides those that every device has.

virtio::counters! {
    /// Bytes and openings of one port. Only the engine's core writes these counters.
    PortCounters {
        /// Bytes that the guest sent and the control core gets.
        output_bytes,
        /// Bytes that the guest sent and that were dropped, because nobody read.
        output_dropped,
        /// Requests of the guest with output.
        output_requests,
        /// Bytes that the guest got.
        input_bytes,
        /// Times output had to wait because its ring was full.
        waits,
        /// Times that the guest has opened the port while it was closed. A restart of the guest does not set it back.
        openings,
    }
}

virtio::counters! {
    /// Control messages of one console device. Only the engine's core writes these counters.
    MessageCounters {
        /// Control messages of the driver that were understood.
        received,
        /// Control messages to the driver.
        sent,
        /// Control messages of the driver that were ignored: too short, an unknown event, or a port that does not exist
        /// or is not ready.
        refused,
        /// Buffers of the driver that were too small for a control message, given back empty.
        too_small,
    }
}
