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

use memory::GuestMemory;
use virtio::chain::{Segment, Span};

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

impl Ram {
    /// Begins a long transfer. `data` is the place of a [`Span`]: a span would be an argument in memory, and a caller
    /// would write each request there.
    #[cold]
    #[inline(never)]
    fn begin_long(
        &mut self,
        disk: &'static RamDisk,
        (tag, direction): (Tag, Direction),
        at: u64,
        memory: &GuestMemory,
        buffers: &[Segment],
        place: (u32, u32),
    ) -> Submitted {
        let began = self.long.begin(disk, tag, direction, at, (Span::within(buffers, place), memory));
        if began { Submitted::Pending } else { Submitted::Busy }
    }
}

impl Storage for Ram {
    type Volume = &'static RamDisk;

    fn geometry(&self, disk: Self::Volume) -> Geometry {
        disk.geometry()
    }

    #[inline(always)]
    fn submit(&mut self, disk: Self::Volume, tag: Tag, request: &Request<'_>, _: u64) -> Submitted {
        let Request { operation, first, blocks, data, memory } = *request;
        // The blocks are the disk's, as `check` has seen, so nothing wraps.
        let at = first.wrapping_mul(u64::from(disk::BLOCK_BYTES));
        let bytes = u64::from(blocks).wrapping_mul(u64::from(disk::BLOCK_BYTES));
        let direction = match operation {
            Operation::Read => Direction::ToGuest,
            Operation::Write { .. } => Direction::FromGuest,
            Operation::Flush => return Submitted::Done(Status::Ok),
            Operation::Discard => return Submitted::Done(disk.discard(at, bytes)),
            Operation::WriteZeroes { .. } => return Submitted::Done(disk.write_zeroes(at, bytes)),
        };
        let (buffers, place) = data.place();
        if data.len() > BYTES_AT_ONCE {
            return self.begin_long(disk, (tag, direction), at, memory, buffers, place);
        }
        let moved = match data.piece().and_then(|piece| disk.transfer_piece(direction, at, memory, piece)) {
            Some(moved) => moved,
            None => disk.transfer(direction, at, memory, buffers, place),
        };
        Submitted::Done(if moved { Status::Ok } else { Status::Failed })
    }

    fn poll(&mut self, _: u64, ended: &mut impl FnMut(Tag, Status)) {
        if let Some((tag, status)) = self.long.go_on(BYTES_AT_ONCE) {
            ended(tag, status);
        }
    }

    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        self.long.cancel(tag)
    }
}
