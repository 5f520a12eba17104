//! The configuration of a block device: what it offers and what its driver reads (virtio 1.3 5.2.3 to 5.2.5).

use virtio::config::{CONFIG_BYTES, DeviceConfig, Features, MAX_QUEUES};
use virtio::shared::Shared;

use crate::storage::{Geometry, SECTOR};

/// Virtio device type of a block device (virtio 1.3 5).
pub const DEVICE_TYPE: u16 = 2;
/// Largest size of a queue, in descriptors.
pub const QUEUE_SIZE: u16 = 256;
/// Most queues of a device.
pub const MAX_BLOCK_QUEUES: u16 = 8;
const _: () = assert!(MAX_BLOCK_QUEUES as usize <= MAX_QUEUES);
/// Most buffers of a request. Header and status take the two other descriptors of a chain of the greatest length.
pub const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Offset of `capacity` in the configuration.
pub const CAPACITY: usize = 0;
/// Offset of `writeback` in the configuration.
pub const WRITEBACK: usize = 32;
/// Bytes of the configuration, up to and including `write_zeroes_may_unmap` and its padding.
const LENGTH: u16 = 60;

bitflags::bitflags! {
    /// Feature bits of a block device (virtio 1.3 5.2.3).
    ///
    /// SIZE_MAX is not offered, because a buffer of any size is taken. GEOMETRY is not offered, because cylinders and
    /// heads are meaningless here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BlockFeatures: u64 {
        /// `seg_max` is valid.
        const SEG_MAX = 1 << 2;
        /// The device is read-only.
        const RO = 1 << 5;
        /// `blk_size` is valid.
        const BLK_SIZE = 1 << 6;
        /// The device has a flush command.
        const FLUSH = 1 << 9;
        /// `topology` is valid.
        const TOPOLOGY = 1 << 10;
        /// The driver can switch between write-back and write-through.
        const CONFIG_WCE = 1 << 11;
        /// The device has several queues.
        const MQ = 1 << 12;
        /// The device has a discard command.
        const DISCARD = 1 << 13;
        /// The device has a command to write zeroes.
        const WRITE_ZEROES = 1 << 14;
    }
}

/// The choices of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of queues, 1 to [`MAX_BLOCK_QUEUES`].
    pub queues: u16,
    /// Packed rings are offered.
    pub packed: bool,
    /// The device starts in write-back mode: completed writes may be lost with power until a flush.
    pub writeback: bool,
}

/// Returns the configuration of a device over a volume of this shape.
#[must_use]
pub fn config(geometry: &Geometry, options: &Options) -> DeviceConfig {
    let queues = options.queues.clamp(1, MAX_BLOCK_QUEUES);
    let sectors_of = |blocks: u64| blocks.saturating_mul(u64::from(geometry.block_bytes) / SECTOR);
    let limit = |blocks: u32| u32::try_from(sectors_of(blocks.into())).unwrap_or(!7);
    let mut features =
        BlockFeatures::SEG_MAX | BlockFeatures::BLK_SIZE | BlockFeatures::FLUSH | BlockFeatures::TOPOLOGY;
    features.set(BlockFeatures::RO, geometry.read_only);
    features.set(BlockFeatures::CONFIG_WCE, !geometry.read_only);
    features.set(BlockFeatures::MQ, queues > 1);
    features.set(BlockFeatures::DISCARD, geometry.max_discard != 0 && !geometry.read_only);
    features.set(BlockFeatures::WRITE_ZEROES, geometry.max_zeroes != 0 && !geometry.read_only);
    let mut ring = Features::VERSION_1 | Features::EVENT_IDX | Features::INDIRECT_DESC | Features::RING_RESET;
    ring.set(Features::RING_PACKED, options.packed);

    let mut fields = Fields([0; CONFIG_BYTES]);
    fields.put(CAPACITY, &sectors(geometry).to_le_bytes());
    fields.put(12, &SEG_MAX.to_le_bytes());
    fields.put(20, &geometry.block_bytes.to_le_bytes());
    // Topology: blocks of a physical one as an exponent, no offset, and the sizes of good requests in blocks.
    let in_physical = geometry.physical_bytes.checked_div(geometry.block_bytes).unwrap_or(1).max(1);
    fields.put(24, &[in_physical.ilog2() as u8, 0]);
    fields.put(26, &(in_physical as u16).to_le_bytes());
    fields.put(WRITEBACK, &[u8::from(options.writeback && !geometry.read_only)]);
    fields.put(34, &queues.to_le_bytes());
    if features.contains(BlockFeatures::DISCARD) {
        fields.put(36, &limit(geometry.max_discard).to_le_bytes());
        fields.put(40, &1_u32.to_le_bytes());
        fields.put(44, &((u64::from(geometry.discard_bytes) / SECTOR) as u32).to_le_bytes());
    }
    if features.contains(BlockFeatures::WRITE_ZEROES) {
        fields.put(48, &limit(geometry.max_zeroes).to_le_bytes());
        fields.put(52, &1_u32.to_le_bytes());
        fields.put(56, &[1]);
    }
    DeviceConfig {
        device_type: DEVICE_TYPE,
        features: features.bits() | ring.bits(),
        queues,
        queue_size: QUEUE_SIZE,
        config: fields.0,
        config_len: LENGTH,
        driver_writes: if features.contains(BlockFeatures::CONFIG_WCE) { 1 << WRITEBACK } else { 0 },
    }
}

/// Returns the size in bytes that the driver of a block device reads now.
#[must_use]
pub fn capacity(shared: &Shared) -> u64 {
    u64::from_le_bytes(shared.config_bytes(CAPACITY)).saturating_mul(SECTOR)
}

/// The size of a volume in sectors of 512 bytes.
pub(crate) const fn sectors(geometry: &Geometry) -> u64 {
    geometry.blocks.saturating_mul(geometry.block_bytes as u64 / SECTOR)
}

struct Fields([u8; CONFIG_BYTES]);

impl Fields {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0.iter_mut().skip(at).zip(bytes).for_each(|(field, byte)| *field = *byte);
    }
}
