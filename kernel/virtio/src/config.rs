//! A virtio device's fixed configuration, and its driver's configuration of the queues (virtio 1.3 ch. 2.2, 2.5,
//! 4.1.4.3, 5, 6).

/// Most queues of a device. A network device with four pairs and a control queue needs nine.
pub const MAX_QUEUES: usize = 9;
/// MSI-X entries: one for each queue and one for configuration changes.
pub const VECTORS: usize = MAX_QUEUES + 1;
/// The largest queue size that can be offered, in descriptors.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Most bytes of device-specific configuration.
pub const CONFIG_BYTES: usize = 64;
/// No MSI-X vector for this event (virtio 1.3 4.1.4.3).
pub const NO_VECTOR: u16 = 0xffff;

bitflags::bitflags! {
    /// Feature bits of the ring and the transport (virtio 1.3 ch. 6). The other bits belong to the device type and
    /// differ between types.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// A descriptor may name a table of descriptors.
        const INDIRECT_DESC = 1 << 28;
        /// `used_event` and `avail_event` instead of flags.
        const EVENT_IDX = 1 << 29;
        /// Virtio 1.0 or later.
        const VERSION_1 = 1 << 32;
        /// Queues are packed rings.
        const RING_PACKED = 1 << 34;
        /// The device uses buffers in the order in which they were made available.
        const IN_ORDER = 1 << 35;
        /// The driver can reset one queue and set it up again while the others go on.
        const RING_RESET = 1 << 40;
    }
}

/// A device's fixed configuration.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Virtio device type (virtio 1.3 ch. 5): 1 is net, 2 block, 3 console, 4 entropy.
    pub device_type: u16,
    /// Offered features: [`Features`], and those of the device type.
    pub features: u64,
    /// Number of queues, up to [`MAX_QUEUES`].
    pub queues: u16,
    /// The largest queue size, a power of two up to [`MAX_QUEUE_SIZE`].
    pub queue_size: u16,
    /// Device-specific configuration.
    pub config: [u8; CONFIG_BYTES],
    /// Bytes of device-specific configuration.
    pub config_len: u16,
    /// Bytes of it that the driver may write, one bit each; bit 0 is the first byte. A reset of the device restores
    /// them.
    pub driver_writes: u64,
}

const _: () = assert!(CONFIG_BYTES <= u64::BITS as usize);

/// The driver's configuration of a queue.
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
    /// The configuration after reset.
    pub const RESET: Self = Self { size: 0, desc: 0, avail: 0, used: 0, vector: NO_VECTOR, enabled: false };
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::RESET
    }
}
