//! Frame counters of each port of the switch, and of each uplink. "tx" is what a guest sent, "rx" what it received.

use virtio::counters::Counter;

virtio::counters! {
    /// Frames of one port, and the work that was done on them. Only the engine's core writes these counters.
    FrameCounters {
        /// Frames taken from the guest, dropped ones included.
        tx_packets,
        /// Bytes of the frames in `tx_packets`, without the virtio-net header.
        tx_bytes,
        /// Frames delivered to the guest.
        rx_packets,
        /// Bytes of the frames in `rx_packets`, without the virtio-net header.
        rx_bytes,
        /// Frames for this guest that its driver's receive filter refused. They do not count as drops.
        rx_not_wanted,
        /// Checksums that were computed because this guest does not accept partial ones.
        rx_checksums,
        /// Segments that were made because this guest does not accept unsegmented TCP.
        rx_segments,
        /// Commands of its control queue, which is not polled.
        commands,
    }
}

virtio::counters! {
    /// Frames of one port that were dropped, by cause. Only the engine's core writes these counters.
    Drops {
        /// Frames from this guest that were shorter than an Ethernet header or longer than the port's maximum.
        tx_bad_length,
        /// Frames from this guest whose virtio-net header requested what was not negotiated, or did not match the
        /// frame.
        tx_bad_header,
        /// Frames from this guest to be cut into segments of fewer bytes than
        /// [`LEAST_MSS`](crate::offload::LEAST_MSS).
        tx_small_mss,
        /// Frames from this guest whose copies or segments were not all made, because they would have taken more work than
        /// one frame may cause.
        tx_cut_short,
        /// Frames from this guest with a multicast source address.
        tx_bad_source,
        /// Frames from this guest with a MAC source address that is not its port's.
        tx_spoofed_mac,
        /// Frames from this guest with a false address in IP, ARP or neighbour discovery, or with a message that only
        /// routers send.
        tx_spoofed_address,
        /// Frames from this guest whose headers cannot be read, if a rule looks at them.
        tx_unreadable,
        /// Frames from this guest with a tag that its port does not take, or without a tag that it must have.
        tx_vlan,
        /// Frames from this guest that a stage of its port denies.
        tx_denied,
        /// Frames from this guest above a limit of its port.
        tx_limited,
        /// Frames from this guest that would be flooded, above the storm limit of its port.
        tx_storm,
        /// Frames from this guest that no other port and no uplink takes, or for a group that no bridge forwards.
        tx_no_destination,
        /// Frames for this guest without enough posted buffers.
        rx_no_buffer,
        /// Frames for this guest larger than the one buffer that may hold them, or than the maximum of this port.
        rx_too_large,
        /// Frames for this guest while its device was not running.
        rx_not_running,
        /// Frames for this guest that a stage of its port denies.
        rx_denied,
        /// Frames for this guest above a limit of its port.
        rx_limited,
        /// Frames for this guest whose headers cannot be read, if a rule looks at them.
        rx_unreadable,
    }
}

/// All frame counters of one port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Frames that were forwarded.
    pub frames: FrameCounters,
    /// Frames that were dropped.
    pub drops: Drops,
}

impl PortCounters {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { frames: FrameCounters::new(), drops: Drops::new() }
    }

    /// Returns every counter with its name, for a report.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.frames.iter().chain(self.drops.iter())
    }
}

virtio::counters! {
    /// Frame counters of one uplink. "tx" is what guests sent out.
    UplinkCounters {
        /// Frames handed to the NIC.
        tx_packets,
        /// Bytes of the frames in `tx_packets`.
        tx_bytes,
        /// Frames that the NIC returned unsent: the link was lost, or the NIC was reset.
        tx_dropped,
        /// Frames that the NIC refused: it had no room or no link, or cannot send them.
        tx_refused,
        /// Frames and segments that the NIC held when this was last updated.
        tx_held,
        /// Checksums that were computed because the NIC does not compute them.
        tx_checksums,
        /// Segments that were made because the NIC does not segment.
        tx_segments,
        /// Frames received, dropped ones included.
        rx_packets,
        /// Bytes of the frames in `rx_packets`.
        rx_bytes,
        /// Frames received on another queue of the NIC than the first.
        rx_steered,
        /// Frames shorter than an Ethernet header, or with a multicast source address.
        rx_malformed,
        /// Frames whose source is the address of a guest.
        rx_own_source,
        /// Frames for an address that no guest behind this uplink has, or for a group that no bridge forwards.
        rx_not_ours,
        /// Received frames that the uplink's own rules refused: its VLANs, its stages, its storm limit.
        rx_refused,
        /// Frames from guests that the uplink's stages refused.
        tx_denied,
        /// Times that the link went up or down.
        link_changes,
        /// Speed of the link in Mb/s, 0 without a link.
        link_mbits,
        /// The NIC's count of good frames received, missed ones included.
        nic_rx_packets,
        /// The NIC's count of bytes of good frames received, FCS included.
        nic_rx_bytes,
        /// The NIC's count of frames sent.
        nic_tx_packets,
        /// The NIC's count of bytes sent, FCS included.
        nic_tx_bytes,
        /// The NIC's count of received frames for which it had no room.
        nic_rx_missed,
        /// The NIC's count of received frames for which its queue had no buffer.
        nic_rx_no_buffer,
        /// The NIC's count of received frames with a wrong checksum (FCS).
        nic_rx_crc_errors,
        /// The NIC's count of received frames that were too short or too long.
        nic_rx_length_errors,
        /// Frames that the NIC received and that its driver could not interpret.
        nic_rx_malformed,
        /// The NIC's count of frames that its filters refused.
        nic_rx_filtered,
        /// 1: the NIC accepts all unicasts. 0: only those for its guests.
        nic_promiscuous,
        /// 1: the NIC accepts all multicasts. 0: only those that its guests set, and those that it cannot tell from
        /// them.
        nic_all_multicast,
        /// Times that the driver reset the NIC to recover it.
        nic_recoveries,
    }
}

/// Why a frame was dropped at an uplink. Each has its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UplinkDrop {
    /// [`UplinkCounters::rx_malformed`]
    Malformed,
    /// [`UplinkCounters::rx_own_source`]
    OwnSource,
    /// [`UplinkCounters::rx_not_ours`]
    NotOurs,
    /// [`UplinkCounters::rx_refused`]
    Refused,
    /// [`UplinkCounters::tx_denied`]
    Denied,
    /// [`UplinkCounters::tx_refused`]
    RefusedByNic,
    /// [`UplinkCounters::tx_dropped`]
    Unsent,
}

impl UplinkDrop {
    /// All of them, by number.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::OwnSource,
        Self::NotOurs,
        Self::Refused,
        Self::Denied,
        Self::RefusedByNic,
        Self::Unsent,
    ];

    /// Its counter.
    #[must_use]
    pub const fn counter(self, of: &UplinkCounters) -> &Counter {
        match self {
            Self::Malformed => &of.rx_malformed,
            Self::OwnSource => &of.rx_own_source,
            Self::NotOurs => &of.rx_not_ours,
            Self::Refused => &of.rx_refused,
            Self::Denied => &of.tx_denied,
            Self::RefusedByNic => &of.tx_refused,
            Self::Unsent => &of.tx_dropped,
        }
    }

    /// The name of its counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "rx_malformed",
            Self::OwnSource => "rx_own_source",
            Self::NotOurs => "rx_not_ours",
            Self::Refused => "rx_refused",
            Self::Denied => "tx_denied",
            Self::RefusedByNic => "tx_refused",
            Self::Unsent => "tx_dropped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drop_at_an_uplink_has_the_number_of_its_place_and_the_name_of_its_counter() {
        for (number, drop) in UplinkDrop::ALL.into_iter().enumerate() {
            assert_eq!(drop as usize, number);
            let counters = UplinkCounters::new();
            drop.counter(&counters).add(1);
            let counted: Vec<_> = counters.iter().filter(|&(_, count)| count != 0).collect();
            assert_eq!(counted, [(drop.name(), 1)]);
        }
    }
}
