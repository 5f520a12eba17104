//! Checks a request against the device: type, direction, length, range, flags (virtio 1.3 5.2.6). Every field is
//! hostile.

use memory::GuestMemory;
use virtio::fault::Fault;

use crate::device::BlockFeatures;
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

/// What the check must know of the device.
pub struct Rules<'r> {
    /// The volume's shape.
    pub geometry: &'r Geometry,
    /// The features that the driver accepted.
    pub negotiated: BlockFeatures,
    /// Writes are to be durable when they complete.
    pub durable: bool,
    /// The guest's memory.
    pub memory: &'r GuestMemory,
}

impl<'r> Rules<'r> {
    /// Checks a request.
    ///
    /// # Errors
    /// A buffer is not in the guest's memory. This does not happen: the chain was checked.
    pub fn check(&self, parts: &Parts<'r>) -> Result<Checked<'r>, Fault> {
        Ok(match parts.kind {
            kind::IN if parts.output.is_empty() => {
                self.transfer(Operation::Read, parts.sector, parts.input.len(), parts)
            }
            kind::OUT if parts.input.is_empty() && !self.geometry.read_only => {
                let operation = Operation::Write { durable: self.durable && self.geometry.volatile_cache };
                self.transfer(operation, parts.sector, parts.output.len(), parts)
            }
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

    fn transfer(&self, operation: Operation, sector: u64, bytes: u32, parts: &Parts<'r>) -> Checked<'r> {
        match self.blocks(sector, bytes.into()) {
            Some((first, blocks)) => Checked::Storage(self.request(operation, first, blocks, parts)),
            None => Checked::Bad,
        }
    }

    /// Converts a range of bytes from `sector` on to blocks. Returns `None` if it is empty, not in whole blocks, or
    /// not within the volume.
    fn blocks(&self, sector: u64, bytes: u64) -> Option<(u64, u32)> {
        let block = u64::from(self.geometry.block_bytes);
        let at = sector.checked_mul(SECTOR)?;
        if bytes == 0 || !at.is_multiple_of(block) || !bytes.is_multiple_of(block) {
            return None;
        }
        let (first, blocks) = (at / block, bytes / block);
        let within = first.checked_add(blocks)? <= self.geometry.blocks;
        within.then_some((first, u32::try_from(blocks).ok()?))
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
