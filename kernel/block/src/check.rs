//! Checks a request against the device: type, direction, length, range, flags (virtio 1.3 5.2.6). Every field is
//! hostile.

use engine::device::Device;
use memory::GuestMemory;
use virtio::fault::Fault;
use virtio::shared::Shared;

use crate::device::{BlockFeatures, WRITEBACK};
use crate::header::{Parts, kind};
use crate::storage::{Geometry, Operation, Request, SECTOR};

/// Bytes of the range of a discard or of a request to write zeroes: sector, number of sectors, flags.
const RANGE_BYTES: u32 = 16;
/// Flag of a range: the blocks may be released.
const UNMAP: u32 = 1;

/// The result of the check.
pub enum Checked<'r> {
    /// For the storage.
    Storage(Request<'r>),
    /// Asks for the serial number.
    Identity,
    /// Answered with IOERR.
    Bad,
    /// Answered with UNSUPP.
    Unsupported,
}

/// The direction of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The device writes them.
    ToGuest,
    /// The device reads them.
    FromGuest,
}

/// What a device's driver has chosen.
pub struct Driver {
    /// The features that it accepted.
    negotiated: BlockFeatures,
    shared: &'static Shared,
}

impl Driver {
    /// The driver of a device.
    pub fn of(device: &Device) -> Self {
        Self { negotiated: BlockFeatures::from_bits_retain(device.features().bits()), shared: device.shared() }
    }

    /// Whether it wants completed writes to be durable (virtio 1.3 5.2.6.2): with CONFIG_WCE it says so in `writeback`;
    /// otherwise a driver that never flushes does. Call it after a request was seen: the driver may have changed
    /// `writeback` before it offered the request.
    fn wants_durable_writes(&self) -> bool {
        if self.negotiated.contains(BlockFeatures::CONFIG_WCE) {
            self.shared.config_bytes::<1>(WRITEBACK) == [0]
        } else {
            !self.negotiated.contains(BlockFeatures::FLUSH)
        }
    }
}

/// What the check must know of the device.
pub struct Rules<'r> {
    /// The volume's shape.
    geometry: &'r Geometry,
    negotiated: BlockFeatures,
    /// Writes are to be durable when they complete.
    durable: bool,
    /// Sectors of the volume.
    sectors: u64,
    /// Bits of a number of bytes that are 0 in whole blocks, and the number of these bits.
    block_mask: u64,
    block_shift: u32,
    /// The guest's memory.
    memory: &'r GuestMemory,
}

impl<'r> Rules<'r> {
    /// The rules for requests that were seen already.
    pub fn new(geometry: &'r Geometry, driver: &Driver, memory: &'r GuestMemory) -> Self {
        let durable = geometry.volatile_cache && driver.wants_durable_writes();
        // A power of two.
        let block = u64::from(geometry.block_bytes);
        Self {
            geometry,
            negotiated: driver.negotiated,
            durable,
            sectors: geometry.blocks.saturating_mul(block / SECTOR),
            block_mask: block.wrapping_sub(1),
            block_shift: block.trailing_zeros(),
            memory,
        }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// A buffer is not in the guest's memory. This does not happen: the chain was checked.
    pub fn check(&self, parts: &Parts<'r>) -> Result<Checked<'r>, Fault> {
        let transfer = |data: Data, bytes| match self.transfer(parts.kind, parts.sector, data, bytes) {
            Some((operation, first, blocks)) => Checked::Storage(self.request(operation, first, blocks, parts)),
            None => Checked::Bad,
        };
        Ok(match parts.kind {
            kind::IN if parts.output.is_empty() => transfer(Data::ToGuest, parts.input.len()),
            kind::OUT if parts.input.is_empty() => transfer(Data::FromGuest, parts.output.len()),
            kind::FLUSH if parts.input.is_empty() && parts.output.is_empty() => {
                Checked::Storage(self.request(Operation::Flush, 0, 0, parts))
            }
            kind::GET_ID if parts.output.is_empty() && !parts.input.is_empty() => Checked::Identity,
            kind::DISCARD if self.negotiated.contains(BlockFeatures::DISCARD) => self.range(parts, true)?,
            kind::WRITE_ZEROES if self.negotiated.contains(BlockFeatures::WRITE_ZEROES) => self.range(parts, false)?,
            kind::IN | kind::OUT | kind::FLUSH | kind::GET_ID => Checked::Bad,
            _ => Checked::Unsupported,
        })
    }

    /// Checks a read or a write whose data are so many bytes of one direction. Returns the operation, the first block and
    /// the number of blocks. Returns `None` if the request fails, or is neither.
    #[inline(always)]
    pub fn transfer(&self, kind: u32, sector: u64, data: Data, bytes: u32) -> Option<(Operation, u64, u32)> {
        let operation = match (kind, data) {
            (kind::IN, Data::ToGuest) => Operation::Read,
            (kind::OUT, Data::FromGuest) if !self.geometry.read_only => Operation::Write { durable: self.durable },
            _ => return None,
        };
        let (first, blocks) = self.blocks(sector, bytes.into())?;
        Some((operation, first, blocks))
    }

    /// The guest's memory.
    #[inline]
    pub const fn memory(&self) -> &'r GuestMemory {
        self.memory
    }

    /// Converts a range of bytes from `sector` on to blocks. Returns `None` if it is empty, not in whole blocks, or
    /// not within the volume.
    #[inline(always)]
    fn blocks(&self, sector: u64, bytes: u64) -> Option<(u64, u32)> {
        let end = sector.checked_add(bytes / SECTOR)?;
        // The address does not wrap if the end is within the volume.
        let at = sector.wrapping_mul(SECTOR);
        let partly = (at | bytes) & self.block_mask != 0;
        if bytes == 0 || partly || end > self.sectors {
            return None;
        }
        Some((at >> self.block_shift, u32::try_from(bytes >> self.block_shift).ok()?))
    }

    /// Checks a discard or a request to write zeroes. Both have one range, as the configuration says.
    fn range(&self, parts: &Parts<'r>, discard: bool) -> Result<Checked<'r>, Fault> {
        if !parts.input.is_empty() || parts.output.len() != RANGE_BYTES {
            return Ok(Checked::Bad);
        }
        let mut bytes = [0; RANGE_BYTES as usize];
        parts.output.read(self.memory, &mut bytes)?;
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = bytes;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes(flags);
        let (allowed, most, operation) = if discard {
            (0, self.geometry.max_discard, Operation::Discard)
        } else {
            let durable = self.durable && self.geometry.volatile_cache;
            (UNMAP, self.geometry.max_zeroes, Operation::WriteZeroes { unmap: flags & UNMAP != 0, durable })
        };
        if flags & !allowed != 0 {
            return Ok(Checked::Unsupported);
        }
        let empty = Parts { output: parts.input, ..*parts };
        Ok(match self.blocks(sector, u64::from(sectors) * SECTOR) {
            Some((first, blocks)) if blocks <= most && !self.geometry.read_only => {
                Checked::Storage(self.request(operation, first, blocks, &empty))
            }
            _ => Checked::Bad,
        })
    }

    /// A request whose data are the parts' only bytes.
    fn request(&self, operation: Operation, first: u64, blocks: u32, parts: &Parts<'r>) -> Request<'r> {
        let data = if parts.output.is_empty() { parts.input } else { parts.output };
        Request { operation, first, blocks, data, memory: self.memory }
    }
}
