//! One RAM disk. All users share it by reference. It keeps its contents for as long as the hypervisor runs.

use memory::GuestMemory;
use memory::host::HostMemory;
use memory::span::Piece;
use virtio::chain::{Segment, Span};

use super::overlay::{OVERLAY_BLOCK, Overlay, bytes_or_zeroes};
use crate::storage::{Geometry, Status};

/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 512;
const BLOCK: usize = BLOCK_BYTES as usize;
/// Most blocks of one discard or one request to write zeroes: 256 KiB, which takes about as long as a visit of an
/// engine.
const MAX_RANGE: u32 = 512;

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the disk to the guest's buffers.
    ToGuest,
    /// From the guest's buffers to the disk.
    FromGuest,
}

#[derive(Debug)]
enum Contents {
    /// All of it is memory.
    Memory(HostMemory),
    /// It cannot be written.
    Base(&'static [u8]),
    /// Blocks that were written are in the overlay.
    Overlay(Overlay),
}

/// A RAM disk.
#[derive(Debug)]
pub struct RamDisk {
    contents: Contents,
    blocks: u64,
    read_only: bool,
}

impl RamDisk {
    /// A disk over memory. Bytes behind the last whole block are not used.
    #[must_use]
    pub const fn of_memory(memory: HostMemory, read_only: bool) -> Self {
        Self { contents: Contents::Memory(memory), blocks: (memory.len() / BLOCK) as u64, read_only }
    }

    /// A read-only disk over `base`. If the base does not end with a block, zeroes follow it.
    #[must_use]
    pub const fn of_base(base: &'static [u8]) -> Self {
        Self { contents: Contents::Base(base), blocks: blocks_of(base), read_only: true }
    }

    /// A disk that can be written over a base that stays as it is. If the base does not end with a block, zeroes follow
    /// it.
    #[must_use]
    pub const fn of_overlay(overlay: Overlay) -> Self {
        let blocks = blocks_of(overlay.base());
        Self { contents: Contents::Overlay(overlay), blocks, read_only: false }
    }

    /// Its overlay, if it has one.
    #[must_use]
    pub const fn overlay(&self) -> Option<&Overlay> {
        match &self.contents {
            Contents::Overlay(overlay) => Some(overlay),
            Contents::Memory(_) | Contents::Base(_) => None,
        }
    }

    /// Its shape.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        let range = if self.read_only { 0 } else { MAX_RANGE };
        Geometry {
            block_bytes: BLOCK_BYTES,
            blocks: self.blocks,
            physical_bytes: OVERLAY_BLOCK as u32,
            read_only: self.read_only,
            volatile_cache: false,
            max_discard: range,
            discard_bytes: OVERLAY_BLOCK as u32,
            max_zeroes: range,
        }
    }

    /// Moves bytes between a disk of memory, from byte `at` on, and a piece of the guest's memory. Returns whether it
    /// succeeded; `None` if it is another kind of disk.
    #[inline(always)]
    pub(super) fn transfer_piece(
        &self,
        direction: Direction,
        at: u64,
        memory: &GuestMemory,
        piece: Piece<'_>,
    ) -> Option<bool> {
        let Contents::Memory(all) = &self.contents else { return None };
        let Some(part) = all.part(at as usize, piece.len() as usize) else { return Some(false) };
        Some(match direction {
            Direction::ToGuest => piece.copy_from_host(memory.copier(), part),
            Direction::FromGuest => piece.copy_to_host(memory.copier(), part),
        })
    }

    /// Moves bytes between the disk, from byte `at` on, and the span of this place. Returns false if it failed.
    #[inline(never)]
    pub(super) fn transfer(
        &self,
        direction: Direction,
        mut at: u64,
        memory: &GuestMemory,
        buffers: &[Segment],
        place: (u32, u32),
    ) -> bool {
        Span::within(buffers, place).segments().all(|buffer| {
            let from = at;
            at = at.saturating_add(buffer.len.into());
            self.transfer_one(direction, from, memory, buffer)
        })
    }

    /// The same for one buffer.
    #[inline]
    pub(super) fn transfer_one(
        &self,
        direction: Direction,
        at: u64,
        memory: &GuestMemory,
        Segment { gpa, len }: Segment,
    ) -> bool {
        match (&self.contents, direction) {
            (Contents::Memory(all), _) => all.part(at as usize, len as usize).is_some_and(|part| match direction {
                Direction::ToGuest => part.copy_to(memory, gpa).is_ok(),
                Direction::FromGuest => part.copy_from(memory, gpa).is_ok(),
            }),
            (Contents::Base(base), Direction::ToGuest) => bytes_or_zeroes(base, at, memory, gpa, len.into()),
            (Contents::Base(_), Direction::FromGuest) => false,
            (Contents::Overlay(overlay), Direction::ToGuest) => overlay.read(at, memory, gpa, len.into()),
            (Contents::Overlay(overlay), Direction::FromGuest) => overlay.write(at, memory, gpa, len.into()),
        }
    }

    /// Forgets the contents of a range. They read as zeroes then, except that a part of an overlay's block stays.
    pub(super) fn discard(&self, at: u64, bytes: u64) -> Status {
        match &self.contents {
            Contents::Memory(_) => self.write_zeroes(at, bytes),
            Contents::Base(_) => Status::Failed,
            Contents::Overlay(overlay) => {
                overlay.discard(at, bytes);
                Status::Ok
            }
        }
    }

    pub(super) fn write_zeroes(&self, at: u64, bytes: u64) -> Status {
        let written = match &self.contents {
            Contents::Memory(all) => all.part(at as usize, bytes as usize).map(HostMemory::zero).is_some(),
            Contents::Base(_) => false,
            Contents::Overlay(overlay) => overlay.write_zeroes(at, bytes),
        };
        if written { Status::Ok } else { Status::Failed }
    }
}

/// Blocks of a base. The last one may be shorter.
const fn blocks_of(base: &[u8]) -> u64 {
    base.len().div_ceil(BLOCK) as u64
}
