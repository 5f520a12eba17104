//! A copy-on-write overlay over a read-only base. A block of 4 KiB is copied into the overlay when it is first written.
//! The overlay has a fixed number of blocks. When all are used, a write that needs a new one fails; reads and
//! overwrites go on. Discarded and zeroed blocks are given back.
//!
//! One engine at a time uses an overlay. All state is atomic, so that other cores may read its counters.

use core::sync::atomic::{AtomicU32, Ordering};

use memory::GuestMemory;
use memory::host::HostMemory;

/// Bytes of a block of an overlay.
pub const OVERLAY_BLOCK: usize = 4096;
const BLOCK: u64 = OVERLAY_BLOCK as u64;

/// Entry of the map: the base has the block.
const IN_BASE: u32 = 0;
/// Entry of the map: the block reads as zeroes and needs no memory.
const ZERO: u32 = u32::MAX;
// Any other entry is the number of the overlay's block, plus 1.

/// The memory of an overlay. All of it must be zeroes.
#[derive(Clone, Copy, Debug)]
pub struct OverlayMemory {
    /// One entry for each block of the base; see [`Overlay::map_entries`].
    pub map: &'static [AtomicU32],
    /// One entry for each block of the overlay.
    pub returned: &'static [AtomicU32],
    /// The blocks.
    pub data: HostMemory,
}

/// An overlay and its base.
#[derive(Debug)]
pub struct Overlay {
    base: &'static [u8],
    memory: OverlayMemory,
    /// Number of blocks.
    blocks: u32,
    /// Blocks that were in use at some time: those with a lower number.
    fresh: AtomicU32,
    /// Blocks that were given back: so many entries of `returned`.
    returned: AtomicU32,
    /// Most blocks that were used at the same time.
    most_used: AtomicU32,
    /// Writes that failed because no block was free.
    full: AtomicU32,
}

impl Overlay {
    /// Makes an empty overlay. It has as many blocks as `memory` has room for.
    #[must_use]
    pub const fn new(base: &'static [u8], memory: OverlayMemory) -> Self {
        let room = memory.data.len() / OVERLAY_BLOCK;
        let blocks = if room < memory.returned.len() { room } else { memory.returned.len() };
        // The map's two special entries are no block numbers.
        const MOST: u32 = ZERO - 1;
        let blocks = if blocks < MOST as usize { blocks as u32 } else { MOST };
        Self {
            base,
            memory,
            blocks,
            fresh: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            most_used: AtomicU32::new(0),
            full: AtomicU32::new(0),
        }
    }

    /// Entries that the map needs over a base of `bytes`.
    #[must_use]
    pub const fn map_entries(bytes: usize) -> usize {
        bytes.div_ceil(OVERLAY_BLOCK)
    }

    pub(super) const fn base(&self) -> &'static [u8] {
        self.base
    }

    /// Number of blocks.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        let fresh = self.fresh.load(Ordering::Relaxed);
        fresh.saturating_sub(self.returned.load(Ordering::Relaxed))
    }

    /// Most blocks that were in use at the same time.
    #[must_use]
    pub fn most_used(&self) -> u32 {
        self.most_used.load(Ordering::Relaxed)
    }

    /// Writes that failed because no block was free.
    #[must_use]
    pub fn full(&self) -> u32 {
        self.full.load(Ordering::Relaxed)
    }

    fn entry(&self, block: u64) -> Option<&'static AtomicU32> {
        self.memory.map.get(usize::try_from(block).ok()?)
    }

    /// The memory of the block that a map entry names.
    fn block(&self, entry: u32) -> Option<HostMemory> {
        let number = entry.checked_sub(1)? as usize;
        self.memory.data.part(number.checked_mul(OVERLAY_BLOCK)?, OVERLAY_BLOCK)
    }

    /// Takes a free block. Returns its map entry.
    fn take(&self) -> Option<u32> {
        let (fresh, returned) = (self.fresh.load(Ordering::Relaxed), self.returned.load(Ordering::Relaxed));
        let entry = if let Some(last) = returned.checked_sub(1) {
            let entry = self.memory.returned.get(last as usize)?.load(Ordering::Relaxed);
            self.returned.store(last, Ordering::Relaxed);
            entry
        } else if fresh < self.blocks {
            let entry = fresh.saturating_add(1);
            self.fresh.store(entry, Ordering::Relaxed);
            entry
        } else {
            self.full.store(self.full().saturating_add(1), Ordering::Relaxed);
            return None;
        };
        self.most_used.store(self.most_used().max(self.used()), Ordering::Relaxed);
        Some(entry)
    }

    /// Gives the block of a map entry back, if it has one.
    fn give_back(&self, entry: u32) {
        let returned = self.returned.load(Ordering::Relaxed);
        if let (Some(_), Some(place)) = (self.block(entry), self.memory.returned.get(returned as usize)) {
            place.store(entry, Ordering::Relaxed);
            self.returned.store(returned.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the memory of a block for writing. A new block gets the present contents, unless `whole`: then the
    /// caller overwrites all of it. Returns `None` if no block is free.
    fn writable(&self, block: u64, whole: bool) -> Option<HostMemory> {
        let place = self.entry(block)?;
        let entry = place.load(Ordering::Relaxed);
        if let (true, Some(present)) = (entry != ZERO, self.block(entry)) {
            return Some(present);
        }
        let new = self.take()?;
        let memory = self.block(new)?;
        if !whole {
            // The memory may have been another block's before, and the base may end within this one.
            memory.zero();
            if entry == IN_BASE {
                let start = self.base.len().min(block.saturating_mul(BLOCK) as usize);
                memory.fill(self.base.get(start..).unwrap_or(&[]));
            }
        }
        place.store(new, Ordering::Relaxed);
        Some(memory)
    }

    /// Copies bytes from byte `at` on to guest memory. Returns false if they are beyond the end or not the guest's
    /// memory.
    pub(super) fn read(&self, at: u64, memory: &GuestMemory, gpa: u64, len: u64) -> bool {
        pieces(at, len).all(|Piece { block, offset, len, done }| {
            let Some(entry) = self.entry(block).map(|entry| entry.load(Ordering::Relaxed)) else { return false };
            let to = gpa.wrapping_add(done);
            match entry {
                IN_BASE => {
                    bytes_or_zeroes(self.base, block.saturating_mul(BLOCK).saturating_add(offset), memory, to, len)
                }
                ZERO => memory.zero(to, len).is_ok(),
                _ => self
                    .block(entry)
                    .and_then(|block| block.part(offset as usize, len as usize))
                    .is_some_and(|part| part.copy_to(memory, to).is_ok()),
            }
        })
    }

    /// Copies bytes from guest memory to byte `at` and on. Returns false if no block was free, or as for
    /// [`Overlay::read`]. Part of the bytes may be written then.
    pub(super) fn write(&self, at: u64, memory: &GuestMemory, gpa: u64, len: u64) -> bool {
        pieces(at, len).all(|Piece { block, offset, len, done }| {
            self.writable(block, len == BLOCK)
                .and_then(|block| block.part(offset as usize, len as usize))
                .is_some_and(|part| part.copy_from(memory, gpa.wrapping_add(done)).is_ok())
        })
    }

    /// Gives back the blocks that are wholly in the range. They read as zeroes then.
    pub(super) fn discard(&self, at: u64, len: u64) {
        for piece in pieces(at, len).filter(|piece| self.is_whole(piece)) {
            self.forget(piece.block);
        }
    }

    /// Writes zeroes. Only a block that is partly in the range may need memory. Returns false if there is none.
    pub(super) fn write_zeroes(&self, at: u64, len: u64) -> bool {
        pieces(at, len).all(|piece| {
            let Piece { block, offset, len, .. } = piece;
            if self.is_whole(&piece) {
                return self.forget(block);
            }
            if self.entry(block).is_some_and(|entry| entry.load(Ordering::Relaxed) == ZERO) {
                return true;
            }
            self.writable(block, false)
                .and_then(|block| block.part(offset as usize, len as usize))
                .map(HostMemory::zero)
                .is_some()
        })
    }

    /// Whether a piece is a whole block. The base may end within the last one.
    fn is_whole(&self, piece: &Piece) -> bool {
        let end = piece.block.saturating_mul(BLOCK).saturating_add(piece.len);
        piece.offset == 0 && (piece.len == BLOCK || end >= self.base.len() as u64)
    }

    fn forget(&self, block: u64) -> bool {
        let Some(place) = self.entry(block) else { return false };
        self.give_back(place.load(Ordering::Relaxed));
        place.store(ZERO, Ordering::Relaxed);
        true
    }
}

/// A part of a range of bytes that is in one block.
#[derive(Clone, Copy, Debug)]
struct Piece {
    block: u64,
    /// Where it begins in the block.
    offset: u64,
    len: u64,
    /// Bytes of the range before it.
    done: u64,
}

/// Cuts a range of bytes at the blocks' borders.
fn pieces(at: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0_u64;
    core::iter::from_fn(move || {
        let position = at.saturating_add(done);
        let (block, offset) = (position / BLOCK, position % BLOCK);
        let piece = Piece { block, offset, len: BLOCK.saturating_sub(offset).min(len.saturating_sub(done)), done };
        done = done.saturating_add(piece.len);
        (piece.len != 0).then_some(piece)
    })
}

/// Copies bytes of `base` from byte `at` on to guest memory. Zeroes stand for bytes beyond its end. Returns false if
/// the destination is not the guest's memory.
pub(super) fn bytes_or_zeroes(base: &[u8], at: u64, memory: &GuestMemory, gpa: u64, len: u64) -> bool {
    let rest = usize::try_from(at).ok().and_then(|at| base.get(at..)).unwrap_or(&[]);
    let bytes = rest.get(..len as usize).unwrap_or(rest);
    let copied = bytes.len() as u64;
    let (end, left) = (gpa.wrapping_add(copied), len.saturating_sub(copied));
    memory.write_payload(gpa, bytes).is_ok() && (left == 0 || memory.zero(end, left).is_ok())
}
