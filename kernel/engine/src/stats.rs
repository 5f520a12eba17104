//! Counters that one core writes and any other may read without stopping it.

use core::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows. Reading is always allowed and never synchronises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. For the counter's one writer: a plain load and store, no locked instruction.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes over a value that something else counts. For the counter's one writer.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Adds `n` where several cores write the same counter.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $field:ident,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[$inner])* pub $field: Counter,)*
        }

        impl $name {
            /// All at zero.
            #[must_use]
            pub const fn new() -> Self {
                Self { $($field: Counter::new(),)* }
            }

            /// Every counter with its name, for a report.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($field), &self.$field),)*].into_iter().map(|(name, counter)| (name, counter.get()))
            }
        }
    };
}

counters! {
    /// What happened on one port. "rx" and "tx" are the guest's: tx is what the guest sent.
    ///
    /// The engine's core is the writer of all but `kicks`, which the guest's cores add to.
    PortCounters {
        /// Frames taken from the guest, whatever became of them.
        tx_packets,
        /// Bytes of those frames, without the virtio-net header.
        tx_bytes,
        /// Frames given to the guest.
        rx_packets,
        /// Bytes of those frames, without the virtio-net header.
        rx_bytes,
        /// Frames from this guest that were shorter than an Ethernet header or longer than the port's maximum.
        tx_bad_length,
        /// Frames from this guest whose virtio-net header asked for something that was not negotiated.
        tx_bad_header,
        /// Frames from this guest whose source address was a multicast one.
        tx_bad_source,
        /// Frames from this guest whose source address is not its port's.
        tx_spoofed_mac,
        /// Frames from this guest that pretend an address of IP, ARP or neighbour discovery, or that it is a router.
        tx_spoofed_address,
        /// Frames from this guest whose headers cannot be read, where a rule asks for them.
        tx_unreadable,
        /// Frames from this guest with a tag that its port does not take, or without one where it has to have one.
        tx_vlan,
        /// Frames from this guest that a stage of its port denies.
        tx_denied,
        /// Frames from this guest above a limit of its port's.
        tx_limited,
        /// Frames from this guest for many, above its port's storm limit.
        tx_storm,
        /// Frames from this guest whose only way would have been back to itself.
        tx_no_destination,
        /// Frames for this guest for which it had posted no buffer, or not enough of them.
        rx_no_buffer,
        /// Frames for this guest larger than the one buffer that may hold it, or than this port's maximum.
        rx_too_large,
        /// Frames that its driver has asked not to get: no loss.
        rx_not_wanted,
        /// Checksums that were computed because this guest does not take a frame without.
        rx_checksums,
        /// Segments that were cut for this guest because it does not take TCP frames whole.
        rx_segments,
        /// Frames for this guest while its device was not running.
        rx_not_running,
        /// Frames for this guest that a stage of its port denies.
        rx_denied,
        /// Frames for this guest above a limit of its port's.
        rx_limited,
        /// Frames for this guest whose headers cannot be read, where a rule asks for them.
        rx_unreadable,
        /// Interrupts sent.
        interrupts,
        /// Interrupts that the guest had asked not to get.
        interrupts_suppressed,
        /// Interrupts kept pending because the MSI-X entry was masked.
        interrupts_masked,
        /// MSI-X messages that name something no device may send, or nobody to receive it.
        interrupts_refused,
        /// Notifications by the driver: each cost an exit.
        kicks,
        /// Times a queue was left to its driver's notifications.
        arms,
        /// Times polling of a queue began because its notifications were many.
        polls,
        /// Commands in its control queue, which is not polled.
        commands,
        /// Times the device was set running.
        activations,
        /// Times the device was reset.
        resets,
        /// Times a single queue was reset while the device ran.
        queue_resets,
        /// Times the guest broke the ring's rules and lost its device.
        faults,
        /// Completions of a token that a reset had cancelled.
        stale_tokens,
        /// What its queues have taken of the engine's time, in ticks of its clock: all visits that found something.
        engine_cycles,
    }
}

counters! {
    /// What happened on an uplink. "tx" is what guests sent out.
    UplinkCounters {
        /// Frames given to the NIC.
        tx_packets,
        /// Bytes of those frames.
        tx_bytes,
        /// Frames that the NIC gave back unsent: the link was lost, or it had to be reset.
        tx_dropped,
        /// Frames for which the NIC had no room, no link, or that it cannot send.
        tx_refused,
        /// Frames, and segments of some, that the NIC has now and their guests not back, as last counted.
        tx_held,
        /// Checksums that were computed because the NIC does not.
        tx_checksums,
        /// Segments that were cut because the NIC does not.
        tx_segments,
        /// Frames that came, whatever became of them.
        rx_packets,
        /// Bytes of those frames.
        rx_bytes,
        /// Of these, frames that came by another queue of the NIC's than the first.
        rx_steered,
        /// Frames that are none, or whose source is a multicast address.
        rx_malformed,
        /// Frames that bear the address of a guest's port as their source.
        rx_own_source,
        /// Frames for an address that no guest behind it has.
        rx_not_ours,
        /// Frames that came and were refused by the uplink's own rules: its VLANs, its stages, its storm limit.
        rx_refused,
        /// Frames of guests' that were refused on their way out by the uplink's stages.
        tx_denied,
        /// Times the link came or went.
        link_changes,
        /// The link's speed in Mb/s, 0 without one.
        link_mbits,
        /// As the NIC counts them: good frames that came, missed ones among them.
        nic_rx_packets,
        /// Their bytes, FCS included.
        nic_rx_bytes,
        /// Frames that left.
        nic_tx_packets,
        /// Their bytes, FCS included.
        nic_tx_bytes,
        /// Frames that came and for which it had no room.
        nic_rx_missed,
        /// Frames for which its queue had no buffer.
        nic_rx_no_buffer,
        /// Damaged frames.
        nic_rx_crc_errors,
        /// Frames too short or too long.
        nic_rx_length_errors,
        /// Frames that it handed over and the driver could make nothing of.
        nic_rx_malformed,
        /// Frames that its filters left out.
        nic_rx_filtered,
        /// 1: it lets in unicasts for everybody. 0: for its guests.
        nic_promiscuous,
        /// 1: it lets in all multicasts. 0: those that its guests asked for, and what it cannot tell from them.
        nic_all_multicast,
        /// Times it was reset to get it going again.
        nic_recoveries,
    }
}

counters! {
    /// What one engine did with its time. A turn is busy if it moved at least one request.
    EngineCounters {
        /// Turns that found work.
        busy_turns,
        /// Turns that found none.
        idle_turns,
        /// Clock ticks spent in busy turns.
        busy_cycles,
        /// Clock ticks spent in idle turns.
        idle_cycles,
        /// Turns of either kind that took longer than [`Engine::set_long_turn`](crate::engine::Engine::set_long_turn) says.
        long_turns,
        /// Requests moved.
        requests,
        /// Visits to a queue, with those that found nothing. [`Fine`](crate::schedule::Fine) visits no polled queue that is empty.
        visits,
    }
}

#[cfg(test)]
mod tests {
    use super::PortCounters;

    #[test]
    fn counters_report_under_their_own_names() {
        let c = PortCounters::new();
        c.tx_bytes.add(60);
        c.kicks.add_shared(2);
        c.interrupts.set(7);
        c.interrupts.set(5);
        let all: Vec<_> = c.iter().filter(|&(_, n)| n != 0).collect();
        assert_eq!(all, [("tx_bytes", 60), ("interrupts", 5), ("kicks", 2)]);
    }
}
