//! The feature bits of a network device.

use engine::device::Device;
use virtio::config::Features as Ring;

bitflags::bitflags! {
    /// Feature bits that a network device may offer. Its own (virtio 1.3 5.1.3) have NET in their names. The others are
    /// those of the ring and the transport (ch. 6), [`virtio::config::Features`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Net: the device completes checksums for the driver.
        const NET_CSUM = 1 << 0;
        /// Net: the driver accepts frames with a partial checksum.
        const NET_GUEST_CSUM = 1 << 1;
        /// Net: the device has a maximum MTU in its configuration.
        const NET_MTU = 1 << 3;
        /// Net: the device has a MAC address in its configuration.
        const NET_MAC = 1 << 5;
        /// Net: the driver accepts unsegmented TCP over IPv4.
        const NET_GUEST_TSO4 = 1 << 7;
        /// Net: the driver accepts unsegmented TCP over IPv6.
        const NET_GUEST_TSO6 = 1 << 8;
        /// Net: the driver accepts unsegmented TCP with CWR set.
        const NET_GUEST_ECN = 1 << 9;
        /// Net: the device segments TCP over IPv4 for the driver.
        const NET_HOST_TSO4 = 1 << 11;
        /// Net: the device segments TCP over IPv6 for the driver.
        const NET_HOST_TSO6 = 1 << 12;
        /// Net: the device segments TCP with CWR set for the driver.
        const NET_HOST_ECN = 1 << 13;
        /// Net: a received frame may span several buffers.
        const NET_MRG_RXBUF = 1 << 15;
        /// Net: the configuration has a link status.
        const NET_STATUS = 1 << 16;
        /// Net: there is a control queue.
        const NET_CTRL_VQ = 1 << 17;
        /// Net: the driver can set a receive filter.
        const NET_CTRL_RX = 1 << 18;
        /// Net: the driver can set a VLAN filter.
        const NET_CTRL_VLAN = 1 << 19;
        /// Net: the receive filter has further modes.
        const NET_CTRL_RX_EXTRA = 1 << 20;
        /// Net: the driver can be asked to announce itself.
        const NET_GUEST_ANNOUNCE = 1 << 21;
        /// Net: the driver can use several queue pairs.
        const NET_MQ = 1 << 22;
        /// A descriptor may name a table of descriptors.
        const INDIRECT_DESC = Ring::INDIRECT_DESC.bits();
        /// Notifications are suppressed by `used_event` and `avail_event` instead of by flags.
        const EVENT_IDX = Ring::EVENT_IDX.bits();
        /// Virtio 1.0 or later.
        const VERSION_1 = Ring::VERSION_1.bits();
        /// Queues are packed rings.
        const RING_PACKED = Ring::RING_PACKED.bits();
        /// Buffers are used in the order in which they were made available. Must not be offered if frames leave through
        /// an uplink, because their buffers are held until the NIC has sent them.
        const IN_ORDER = Ring::IN_ORDER.bits();
        /// The driver can reset one queue and set it up again while the others go on.
        const RING_RESET = Ring::RING_RESET.bits();
    }
}

impl Features {
    /// Net: checksum offload, in both directions.
    pub const NET_CHECKSUM: Self = Self::NET_CSUM.union(Self::NET_GUEST_CSUM);
    /// Net: segmentation offload, in both directions. It depends on checksum offload.
    pub const NET_SEGMENTATION: Self = Self::NET_HOST_TSO4
        .union(Self::NET_HOST_TSO6)
        .union(Self::NET_HOST_ECN)
        .union(Self::NET_GUEST_TSO4)
        .union(Self::NET_GUEST_TSO6)
        .union(Self::NET_GUEST_ECN);

    /// Returns the features that the driver of a network device accepted.
    #[must_use]
    #[inline]
    pub fn of(device: &Device) -> Self {
        Self::from_bits_retain(device.features().bits())
    }

    /// Returns the features of the ring and the transport.
    #[must_use]
    pub const fn ring(self) -> Ring {
        Ring::from_bits_truncate(self.bits())
    }
}
