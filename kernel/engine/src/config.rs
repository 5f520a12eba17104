//! What a virtio device is, and how its driver configures its queues (virtio 1.3 ch. 2.2, 2.5, 4.1.4.3, 5, 6).

use crate::policy::Policy;

/// Queue pairs a net device may have at most.
pub const MAX_QUEUE_PAIRS: usize = 4;
/// Queues a device may have at most: the pairs and a control queue.
pub const MAX_QUEUES: usize = 2 * MAX_QUEUE_PAIRS + 1;
/// MSI-X entries: one for each queue and one for configuration changes.
pub const VECTORS: usize = MAX_QUEUES + 1;
/// The largest queue that can be offered, in descriptors.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Bytes of device-specific configuration at most.
pub const CONFIG_BYTES: usize = 64;
/// No MSI-X vector for this event (virtio 1.3 4.1.4.3).
pub const NO_VECTOR: u16 = 0xffff;

bitflags::bitflags! {
    /// Feature bits of the ring and the transport (virtio 1.3 ch. 6), and those of the net device (5.1.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Net: the device completes checksums for the driver.
        const NET_CSUM = 1 << 0;
        /// Net: the driver takes frames whose checksum is not complete.
        const NET_GUEST_CSUM = 1 << 1;
        /// Net: the device has a maximum MTU in its configuration.
        const NET_MTU = 1 << 3;
        /// Net: the device has a MAC address in its configuration.
        const NET_MAC = 1 << 5;
        /// Net: the driver takes a row of TCP segments over IPv4 as one frame.
        const NET_GUEST_TSO4 = 1 << 7;
        /// Net: the same over IPv6.
        const NET_GUEST_TSO6 = 1 << 8;
        /// Net: the same with CWR set.
        const NET_GUEST_ECN = 1 << 9;
        /// Net: the device cuts TCP over IPv4 into segments for the driver.
        const NET_HOST_TSO4 = 1 << 11;
        /// Net: the same over IPv6.
        const NET_HOST_TSO6 = 1 << 12;
        /// Net: the same with CWR set.
        const NET_HOST_ECN = 1 << 13;
        /// Net: a received frame may span several buffers.
        const NET_MRG_RXBUF = 1 << 15;
        /// Net: the configuration has a link status.
        const NET_STATUS = 1 << 16;
        /// Net: there is a control queue.
        const NET_CTRL_VQ = 1 << 17;
        /// Net: the driver can say what it wants to receive.
        const NET_CTRL_RX = 1 << 18;
        /// Net: the driver can say which VLANs it wants to receive.
        const NET_CTRL_VLAN = 1 << 19;
        /// Net: more ways to say what it wants to receive.
        const NET_CTRL_RX_EXTRA = 1 << 20;
        /// Net: the driver can be asked to announce itself.
        const NET_GUEST_ANNOUNCE = 1 << 21;
        /// Net: the driver can use several queue pairs.
        const NET_MQ = 1 << 22;
        /// A descriptor may name a table of descriptors.
        const INDIRECT_DESC = 1 << 28;
        /// `used_event` and `avail_event` instead of flags.
        const EVENT_IDX = 1 << 29;
        /// Virtio 1.0 or later.
        const VERSION_1 = 1 << 32;
        /// Queues are packed rings.
        const RING_PACKED = 1 << 34;
        /// Buffers come back in the order in which they were made available. Not to be offered where frames leave by an uplink, whose
        /// buffers stay out until the NIC has sent them.
        const IN_ORDER = 1 << 35;
        /// The driver can reset one queue, and set it up anew, while the others go on.
        const RING_RESET = 1 << 40;
    }
}

impl Features {
    /// Net: checksum offload, both ways.
    pub const NET_CHECKSUM: Self = Self::NET_CSUM.union(Self::NET_GUEST_CSUM);
    /// Net: segmentation offload, both ways. It needs checksum offload.
    pub const NET_SEGMENTATION: Self = Self::NET_HOST_TSO4
        .union(Self::NET_HOST_TSO6)
        .union(Self::NET_HOST_ECN)
        .union(Self::NET_GUEST_TSO4)
        .union(Self::NET_GUEST_TSO6)
        .union(Self::NET_GUEST_ECN);
}

/// What a device is, and what its port may do, fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Virtio device type (virtio 1.3 ch. 5): 1 is net.
    pub device_type: u16,
    /// Offered features.
    pub features: Features,
    /// Number of queues, up to [`MAX_QUEUES`].
    pub queues: u16,
    /// Largest size of each, a power of two up to [`MAX_QUEUE_SIZE`].
    pub queue_size: u16,
    /// Device-specific configuration.
    pub config: [u8; CONFIG_BYTES],
    /// How many bytes of it there are.
    pub config_len: u16,
    /// The rules of its port; none: everything.
    pub policy: Option<&'static Policy>,
    /// The only uplink that frames of its port leave and come by, in the order of the uplinks. None: in each VLAN the first
    /// that is in that VLAN.
    pub uplink: Option<u8>,
}

/// A queue as the driver configures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Number of descriptors.
    pub size: u16,
    /// Guest-physical address of the descriptor table, or of the packed ring.
    pub desc: u64,
    /// Guest-physical address of the available ring, or of the driver's event suppression structure.
    pub avail: u64,
    /// Guest-physical address of the used ring, or of the device's event suppression structure.
    pub used: u64,
    /// MSI-X entry, or [`NO_VECTOR`].
    pub vector: u16,
    /// The driver has set `queue_enable`.
    pub enabled: bool,
}

impl QueueConfig {
    /// A queue as after reset.
    pub const RESET: Self = Self { size: 0, desc: 0, avail: 0, used: 0, vector: NO_VECTOR, enabled: false };
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::RESET
    }
}
