//! What a request's driver gets when it ends: status byte and used length (virtio 1.3 5.2.6). And what is counted.

use crate::counters::BlockCounters;
use crate::storage::{Operation, Status};

/// Values of the status byte.
pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;

/// Returns the status byte and the used length of a request with so many bytes of data that ended with `status`. The used
/// length counts from the first device-writable byte.
#[inline(always)]
pub fn answer(operation: Operation, bytes: u64, status: Status) -> (u8, u32) {
    let read = operation == Operation::Read;
    match status {
        // The length of a chain fits in 32 bits, the status byte included.
        Status::Ok if read => (OK, bytes.wrapping_add(1) as u32),
        Status::Ok => (OK, 1),
        Status::Failed | Status::FlushFailed | Status::Cancelled => (IOERR, u32::from(!read)),
        Status::Unsupported => (UNSUPP, u32::from(!read)),
    }
}

/// Counts a request that has ended. `bytes` are those of its data, or of the range that it named.
#[inline(always)]
pub fn count(counters: &BlockCounters, operation: Operation, status: Status, bytes: u64) {
    match (status, operation) {
        (Status::Failed | Status::FlushFailed | Status::Cancelled, _) => {
            counters.errors.add(1);
            counters.storage_errors.add(1);
        }
        (Status::Unsupported, _) => counters.unsupported.add(1),
        (Status::Ok, Operation::Read) => {
            counters.reads.add(1);
            counters.read_bytes.add(bytes);
        }
        (Status::Ok, Operation::Write { .. }) => {
            counters.writes.add(1);
            counters.written_bytes.add(bytes);
        }
        (Status::Ok, Operation::Flush) => counters.flushes.add(1),
        (Status::Ok, Operation::Discard) => {
            counters.discards.add(1);
            counters.unmapped_bytes.add(bytes);
        }
        (Status::Ok, Operation::WriteZeroes { .. }) => {
            counters.zeroes.add(1);
            counters.unmapped_bytes.add(bytes);
        }
    }
}
