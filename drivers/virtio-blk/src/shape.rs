//! What a virtio block device says of itself (virtio 1.3, 5.2.3 and 5.2.4).

use core::fmt;

use virtio_drivers::transport::Transport;

/// Bytes of a sector.
pub const SECTOR: u32 = 512;
/// Most bytes of a part: 64 KiB.
pub const PART_BYTES: usize = 64 << 10;

bitflags::bitflags! {
    /// Features that the driver knows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// A buffer has a greatest length.
        const SIZE_MAX = 1 << 1;
        /// The disk cannot be written.
        const RO = 1 << 5;
        /// The disk says the size of its blocks.
        const BLK_SIZE = 1 << 6;
        /// There is a volatile cache, and a flush.
        const FLUSH = 1 << 9;
        /// The disk says the size of its physical blocks.
        const TOPOLOGY = 1 << 10;
        /// Sectors can be discarded.
        const DISCARD = 1 << 13;
        /// The device can write zeroes.
        const WRITE_ZEROES = 1 << 14;
        /// The device follows virtio 1.
        const VERSION_1 = 1 << 32;
        /// The device may reach memory by an IOMMU.
        const ACCESS_PLATFORM = 1 << 33;
    }
}

/// A device's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sectors of 512 bytes, a multiple of a block's.
    pub sectors: u64,
    /// Bytes of a block, 512 or 4096.
    pub block_bytes: u32,
    /// Bytes of a physical block, a power of two, `block_bytes` or more.
    pub physical_bytes: u32,
    /// The device refuses writes.
    pub read_only: bool,
    /// Completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Most sectors of a discard, a multiple of a block's; 0 if the device has none.
    pub discard_sectors: u32,
    /// Sectors of the unit in which discards release memory, 1 or more.
    pub discard_unit: u32,
    /// Most sectors of a request to write zeroes, a multiple of a block's; 0 if the device has none.
    pub zero_sectors: u32,
    /// Most sectors that a part can have: at most [`PART_BYTES`].
    pub part_sectors: u32,
}

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It does not follow virtio's initialisation, or has no queue of the driver's size.
    Protocol(virtio_drivers::Error),
    /// The bytes of its blocks, which are neither 512 nor 4096.
    Block(u32),
    /// Its buffers have at most so many bytes, which is less than a block.
    Buffer(u32),
    /// Its size changed whenever it was read.
    Size,
    /// There is no memory for the driver's buffers.
    Memory,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(e) => write!(f, "it cannot be set up: {e}"),
            Self::Block(bytes) => write!(f, "its blocks have {bytes} bytes; expected 512 or 4096"),
            Self::Buffer(bytes) => write!(f, "its buffers have at most {bytes} bytes; expected a block or more"),
            Self::Size => write!(f, "its size changes whenever it is read"),
            Self::Memory => write!(f, "there is no memory for its buffers"),
        }
    }
}

impl From<virtio_drivers::Error> for Unusable {
    fn from(error: virtio_drivers::Error) -> Self {
        Self::Protocol(error)
    }
}

/// How often the size is read until it stays the same.
const TRIES: u32 = 100;

/// Reads the shape. `features` were negotiated.
pub(crate) fn read(transport: &impl Transport, features: Features) -> Result<Shape, Unusable> {
    let word = |feature, offset, otherwise: u32| match features.contains(feature) {
        true => transport.read_config_space::<u32>(offset),
        false => Ok(otherwise),
    };
    let block_bytes = word(Features::BLK_SIZE, 20, SECTOR)?;
    if block_bytes != 512 && block_bytes != 4096 {
        return Err(Unusable::Block(block_bytes));
    }
    // A block has a power of two of sectors: 1 or 8.
    let in_part = (block_bytes / SECTOR).saturating_sub(1);
    let whole = |sectors: u32| sectors & !in_part;
    let exponent = match features.contains(Features::TOPOLOGY) {
        true => transport.read_config_space::<u8>(24)?,
        false => 0,
    };
    let buffer = word(Features::SIZE_MAX, 8, u32::MAX)?;
    let part_sectors = whole(buffer.min(PART_BYTES as u32) / SECTOR);
    // A discard and a request to write zeroes bring 16 bytes of their own.
    if part_sectors == 0 {
        return Err(Unusable::Buffer(buffer));
    }
    let sectors = capacity(transport)?;
    Ok(Shape {
        sectors: sectors & !u64::from(in_part),
        block_bytes,
        // A larger exponent is no size that a disk has.
        physical_bytes: block_bytes << u32::from(exponent).min(8),
        read_only: features.contains(Features::RO),
        volatile_cache: features.contains(Features::FLUSH),
        discard_sectors: whole(word(Features::DISCARD, 36, 0)?),
        discard_unit: word(Features::DISCARD, 44, 1)?.max(1),
        zero_sectors: whole(word(Features::WRITE_ZEROES, 48, 0)?),
        part_sectors,
    })
}

/// The device's sectors. It is read until it stays the same meanwhile (virtio 1.3, 2.5.1).
fn capacity(transport: &impl Transport) -> Result<u64, Unusable> {
    for _ in 0..TRIES {
        let before = transport.read_config_generation();
        // Fields are aligned to 4 bytes only.
        let [low, high] = [transport.read_config_space::<u32>(0)?, transport.read_config_space::<u32>(4)?];
        let sectors = u64::from(high) << 32 | u64::from(low);
        if transport.read_config_generation() == before {
            return Ok(sectors);
        }
    }
    Err(Unusable::Size)
}
