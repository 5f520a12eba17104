//! Bounce pages: copies of those chunks of a command's data that PRP entries cannot name.

#![allow(unsafe_code, reason = "copies between guests' memory and pages that the device uses")]

use alloc::boxed::Box;
use alloc::vec;

use crate::dma::{Dma, DmaBuffer, PAGE};
use crate::prp::Cursor;

/// The end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// A page, while a command has it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The command's next page, or the next free one.
    next: u32,
    /// The data's offset in the page.
    offset: u32,
    /// First piece to copy the data to. [`NONE`]: nothing is copied back.
    pieces: u32,
}

/// A place in a request's memory that a part of a page is copied to.
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    len: u32,
    next: u32,
}

/// The bounce pages of a queue. Lists are made of indices, so that nothing is allocated after the start.
#[derive(Debug)]
pub(crate) struct Bounce {
    memory: DmaBuffer,
    entries: Box<[Entry]>,
    pieces: Box<[Piece]>,
    free_entry: u32,
    free_piece: u32,
}

impl Bounce {
    /// A page for each of `memory`'s, and `pieces` pieces.
    pub(crate) fn new(memory: DmaBuffer, pieces: usize) -> Self {
        let count = memory.len() / PAGE;
        let next = |at: usize, count: usize| {
            let after = at.saturating_add(1);
            if after < count { after as u32 } else { NONE }
        };
        let mut entries = vec![Entry { next: NONE, offset: 0, pieces: NONE }; count].into_boxed_slice();
        entries.iter_mut().enumerate().for_each(|(at, entry)| entry.next = next(at, count));
        let mut list = vec![Piece { address: 0, len: 0, next: NONE }; pieces].into_boxed_slice();
        list.iter_mut().enumerate().for_each(|(at, piece)| piece.next = next(at, pieces));
        let first = |count| if count == 0 { NONE } else { 0 };
        Self { memory, entries, pieces: list, free_entry: first(count), free_piece: first(pieces) }
    }

    /// Takes a page for `len` bytes at `at`, puts it before `*list`, and returns the bus address of the copy, at
    /// `offset` in the page. If `write`, copies the bytes; else keeps where they go. `None`: there is no page or piece
    /// left; then nothing has changed.
    pub(crate) fn take(
        &mut self,
        dma: &impl Dma,
        mut at: Cursor<'_>,
        (len, offset): (u32, u32),
        write: bool,
        list: &mut u32,
    ) -> Option<u64> {
        let index = self.free_entry;
        let entry = *self.entries.get(index as usize)?;
        let (mut done, mut first, mut last) = (0, NONE, NONE);
        while done < len {
            let Some((address, bytes)) = at.take(u64::from(len.saturating_sub(done))) else {
                self.release_pieces(first);
                return None;
            };
            if write {
                let place = (index as usize).saturating_mul(PAGE).saturating_add(offset.saturating_add(done) as usize);
                let to = self.memory.at(place, bytes as usize)?;
                // SAFETY: the bytes are a segment's, and the caller of `Segment::new` promised that they are readable.
                // `to` is within the page, which no command has.
                unsafe { dma.read(address, to, bytes as usize) };
            } else {
                let Some(piece) = self.take_piece(address, bytes) else {
                    self.release_pieces(first);
                    return None;
                };
                match self.pieces.get_mut(last as usize) {
                    Some(last) => last.next = piece,
                    None => first = piece,
                }
                last = piece;
            }
            done = done.saturating_add(bytes);
        }
        self.free_entry = entry.next;
        *self.entries.get_mut(index as usize)? = Entry { next: *list, offset, pieces: first };
        *list = index;
        Some(self.memory.page_bus(index as usize).wrapping_add(offset.into()))
    }

    fn take_piece(&mut self, address: u64, len: u32) -> Option<u32> {
        let index = self.free_piece;
        let piece = self.pieces.get_mut(index as usize)?;
        self.free_piece = piece.next;
        *piece = Piece { address, len, next: NONE };
        Some(index)
    }

    fn release_pieces(&mut self, mut first: u32) {
        while let Some(piece) = self.pieces.get_mut(first as usize) {
            let next = core::mem::replace(&mut piece.next, self.free_piece);
            self.free_piece = first;
            first = next;
        }
    }

    /// Gives a command's pages back. If `copy`, first copies what the device has read to where it goes.
    ///
    /// # Safety
    /// If `copy`, the promise of the segments still holds: their request is not answered yet.
    pub(crate) unsafe fn release(&mut self, dma: &impl Dma, mut list: u32, copy: bool) {
        while let Some(entry) = self.entries.get(list as usize).copied() {
            let mut at = (list as usize).saturating_mul(PAGE).saturating_add(entry.offset as usize);
            let mut next = entry.pieces;
            while copy && let Some(piece) = self.pieces.get(next as usize) {
                if let Some(from) = self.memory.at(at, piece.len as usize) {
                    // SAFETY: the bytes are a segment's, as the caller promises. `from` is within a page of this pool.
                    unsafe { dma.write(piece.address, from, piece.len as usize) };
                }
                at = at.saturating_add(piece.len as usize);
                next = piece.next;
            }
            self.release_pieces(entry.pieces);
            if let Some(slot) = self.entries.get_mut(list as usize) {
                *slot = Entry { next: self.free_entry, offset: 0, pieces: NONE };
            }
            self.free_entry = list;
            list = entry.next;
        }
    }

    /// Pages that no command has. Walks a list: not for the data path.
    pub(crate) fn free(&self) -> usize {
        let next = |entry: &&Entry| self.entries.get(entry.next as usize);
        core::iter::successors(self.entries.get(self.free_entry as usize), next).count()
    }
}
