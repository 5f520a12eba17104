//! RAM disks: the storage that completes at once.
//!
//! | file | what it does |
//! |---|---|
//! | `disk` | a disk: its contents and its shape |
//! | `overlay` | a copy-on-write overlay over a read-only base |
//! | `long` | a transfer that is too long for one turn |

mod disk;
mod long;
mod overlay;

pub use disk::RamDisk;
pub use overlay::{OVERLAY_BLOCK, Overlay, OverlayMemory};

use disk::Direction;
use long::Long;

use crate::storage::{Geometry, Operation, Request, Status, Storage, Submitted, Tag};

/// Most bytes that a request moves when it is submitted, and that a longer one moves in a turn. It takes some 25 us.
const BYTES_AT_ONCE: u32 = 256 << 10;

/// The RAM disks of an engine. The disks themselves are its volumes.
#[derive(Default)]
pub struct Ram {
    long: Long,
}

impl Ram {
    /// Makes it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Storage for Ram {
    type Volume = &'static RamDisk;

    fn geometry(&self, disk: Self::Volume) -> Geometry {
        disk.geometry()
    }

    fn submit(&mut self, disk: Self::Volume, tag: Tag, request: &Request<'_>, _: u64) -> Submitted {
        let at = request.first * u64::from(disk::BLOCK_BYTES);
        let bytes = u64::from(request.blocks) * u64::from(disk::BLOCK_BYTES);
        let direction = match request.operation {
            Operation::Read => Direction::ToGuest,
            Operation::Write { .. } => Direction::FromGuest,
            Operation::Flush => return Submitted::Done(Status::Ok),
            Operation::Discard => return Submitted::Done(disk.discard(at, bytes)),
            Operation::WriteZeroes { .. } => return Submitted::Done(disk.write_zeroes(at, bytes)),
        };
        if request.data.len() > BYTES_AT_ONCE {
            return if self.long.begin(disk, tag, direction, at, request) {
                Submitted::Pending
            } else {
                Submitted::Busy
            };
        }
        Submitted::Done(disk.transfer(direction, at, request.memory, request.data.segments()))
    }

    fn poll(&mut self, _: u64, ended: &mut impl FnMut(Tag, Status)) {
        if let Some((tag, status)) = self.long.go_on(BYTES_AT_ONCE) {
            ended(tag, status);
        }
    }

    fn cancel(&mut self, tag: Tag) -> bool {
        self.long.cancel(tag)
    }
}
