//! Writes blocks into a buffer of the caller.

use core::ops::Deref;

use super::{
    BLOCK_BYTES, CAPTURES, CHUNK, CHUNK_BYTES, HEADER, HEADER_BYTES, MAGIC, MAX_CONTENT, NAME_BYTES, Table, VERSION,
    check,
};
use crate::capture::{HEAD_BYTES, MOST_BYTES, WORDS};
use crate::record::RECORD_BYTES;
use crate::ring::{Cursor, Ring, Slot};
use crate::{Captured, Record};

/// The buffer has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The time of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Frequency of the TSC in kHz.
    pub tsc_khz: u64,
    /// Seconds since 1970 at `tsc`. 0: there is no clock.
    pub wall: u64,
    /// TSC at that time.
    pub tsc: u64,
}

/// A block that is being written.
pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    /// Bytes of it in use, with the block's head.
    used: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Result<Self, Full> {
        let len = buffer.len().min(BLOCK_BYTES.saturating_add(MAX_CONTENT));
        let buffer = buffer.get_mut(..len).ok_or(Full)?;
        if buffer.len() < BLOCK_BYTES {
            return Err(Full);
        }
        Ok(Self { buffer, used: BLOCK_BYTES })
    }

    fn room(&self) -> usize {
        self.buffer.len().saturating_sub(self.used)
    }

    /// Adds all of the pieces, or nothing.
    pub(super) fn push(&mut self, pieces: &[&[u8]]) -> Result<(), Full> {
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() > self.room() {
            return Err(Full);
        }
        for piece in pieces {
            let end = self.used.saturating_add(piece.len());
            self.buffer.get_mut(self.used..end).ok_or(Full)?.copy_from_slice(piece);
            self.used = end;
        }
        Ok(())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.buffer.get_mut(at..at.saturating_add(bytes.len())) {
            to.copy_from_slice(bytes);
        }
    }

    /// Writes the block's head. Returns the block.
    pub(super) fn finish(mut self, what: u8) -> &'a [u8] {
        let content = self.used.saturating_sub(BLOCK_BYTES);
        self.put(0, &MAGIC);
        self.put(4, &[what, 0, 0, 0]);
        // A content is at most MAX_CONTENT bytes.
        self.put(8, &(content as u32).to_le_bytes());
        let (head, rest) = self.buffer.split_at(BLOCK_BYTES);
        let sum = check(head.get(4..12).unwrap_or_default(), rest.get(..content).unwrap_or_default());
        self.put(12, &sum.to_le_bytes());
        self.buffer.get(..self.used).unwrap_or_default()
    }
}

/// A header that is being written.
pub struct HeaderWriter<'a>(Writer<'a>);

impl<'a> HeaderWriter<'a> {
    /// Begins a header in this buffer.
    ///
    /// # Errors
    /// The buffer is too small even without names.
    pub fn new(buffer: &'a mut [u8], clock: Clock) -> Result<Self, Full> {
        let mut writer = Writer::new(buffer)?;
        let version = u64::from(VERSION).to_le_bytes();
        writer.push(&[&version, &clock.tsc_khz.to_le_bytes(), &clock.wall.to_le_bytes(), &clock.tsc.to_le_bytes()])?;
        debug_assert_eq!(writer.used, BLOCK_BYTES.wrapping_add(HEADER_BYTES));
        Ok(Self(writer))
    }

    /// Adds a name. Of a longer text it takes the first 255 bytes, cut between two characters.
    ///
    /// # Errors
    /// The buffer is full. The names before are in the header.
    pub fn name(&mut self, table: Table, number: u32, belongs_to: u32, name: &str) -> Result<(), Full> {
        let name = name.get(..name.floor_char_boundary(usize::from(u8::MAX))).unwrap_or_default().as_bytes();
        let head = [table as u8, name.len() as u8, 0, 0];
        debug_assert_eq!(head.len().wrapping_add(8), NAME_BYTES);
        self.0.push(&[&head, &number.to_le_bytes(), &belongs_to.to_le_bytes(), name])
    }

    /// Returns the whole block.
    #[must_use]
    pub fn finish(self) -> &'a [u8] {
        self.0.finish(HEADER)
    }
}

/// A chunk that is being written.
pub struct ChunkWriter<'a> {
    writer: Writer<'a>,
    count: u32,
}

impl<'a> ChunkWriter<'a> {
    /// Begins a chunk of a core in this buffer. `first`: number of its first record. `lost`: records of that core lost
    /// since its chunk before.
    ///
    /// # Errors
    /// The buffer is too small even without records.
    pub fn new(buffer: &'a mut [u8], core: u32, first: u64, lost: u64) -> Result<Self, Full> {
        let mut writer = Writer::new(buffer)?;
        writer.push(&[&core.to_le_bytes(), &[0; 4], &first.to_le_bytes(), &lost.to_le_bytes()])?;
        debug_assert_eq!(writer.used, BLOCK_BYTES.wrapping_add(CHUNK_BYTES));
        Ok(Self { writer, count: 0 })
    }

    /// Records for which there is room.
    #[must_use]
    pub fn room(&self) -> usize {
        self.writer.room() / RECORD_BYTES
    }

    /// Number of its records.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Adds the next record of the core.
    ///
    /// # Errors
    /// The buffer is full.
    pub fn push(&mut self, record: Record) -> Result<(), Full> {
        self.writer.push(&[&record.to_bytes()])?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Returns the whole block.
    #[must_use]
    pub fn finish(mut self) -> &'a [u8] {
        self.writer.put(BLOCK_BYTES.saturating_add(4), &self.count.to_le_bytes());
        self.writer.finish(CHUNK)
    }
}

/// Captures that are being written.
pub struct CapturesWriter<'a> {
    writer: Writer<'a>,
    count: u32,
}

impl<'a> CapturesWriter<'a> {
    /// Begins captures of a core in this buffer. `first`: number of its first frame. `lost`: captured frames of that core
    /// lost since its captures before.
    ///
    /// # Errors
    /// The buffer is too small even without frames.
    pub fn new(buffer: &'a mut [u8], core: u32, first: u64, lost: u64) -> Result<Self, Full> {
        let ChunkWriter { writer, count } = ChunkWriter::new(buffer, core, first, lost)?;
        Ok(Self { writer, count })
    }

    /// Whether there is room for a frame, however much of it was kept.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.writer.room() >= HEAD_BYTES + MOST_BYTES
    }

    /// Number of its frames.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Adds the next frame of the core.
    ///
    /// # Errors
    /// The buffer is full.
    pub fn push(&mut self, frame: &Captured) -> Result<(), Full> {
        let bytes = frame.to_bytes();
        self.writer.push(&[bytes.get(..frame.stored()).ok_or(Full)?])?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Returns the whole block.
    #[must_use]
    pub fn finish(mut self) -> &'a [u8] {
        self.writer.put(BLOCK_BYTES.saturating_add(4), &self.count.to_le_bytes());
        self.writer.finish(CAPTURES)
    }
}

/// Makes captures of what the reader has not taken of a core's ring of captured frames, as [`collect`] does for records.
pub fn collect_captures<'a, S: Deref<Target = [Slot<WORDS>]>>(
    ring: &Ring<S, WORDS>,
    cursor: &mut Cursor,
    core: u32,
    buffer: &'a mut [u8],
) -> Option<&'a [u8]> {
    if buffer.len() < BLOCK_BYTES + CHUNK_BYTES + HEAD_BYTES + MOST_BYTES {
        return None;
    }
    let lost = cursor.skip_lost(ring);
    let mut captures = CapturesWriter::new(buffer, core, cursor.position(), lost).ok()?;
    while captures.has_room()
        && let Some(words) = cursor.read_words(ring)
    {
        // There is room.
        let _ = captures.push(&Captured::from_words(&words));
    }
    cursor.give_back(ring);
    (captures.count() > 0 || lost > 0).then(|| captures.finish())
}

/// Makes a chunk of what the reader has not taken of a core's ring, as many records as the buffer has room for. Returns
/// the block, or `None` if there is nothing to tell: no record, and no loss.
///
/// The time of a call is bounded by the buffer's length, however fast the core writes. If the buffer has no room for a
/// record, nothing is taken.
pub fn collect<'a, S: Deref<Target = [Slot]>>(
    ring: &Ring<S>,
    cursor: &mut Cursor,
    core: u32,
    buffer: &'a mut [u8],
) -> Option<&'a [u8]> {
    collect_changed(ring, cursor, core, buffer, |record| record)
}

/// Makes a chunk as [`collect`] does, of what `change` makes of each record.
pub fn collect_changed<'a, S: Deref<Target = [Slot]>>(
    ring: &Ring<S>,
    cursor: &mut Cursor,
    core: u32,
    buffer: &'a mut [u8],
    change: impl Fn(Record) -> Record,
) -> Option<&'a [u8]> {
    if buffer.len() < BLOCK_BYTES.saturating_add(CHUNK_BYTES).saturating_add(RECORD_BYTES) {
        return None;
    }
    let lost = cursor.skip_lost(ring);
    let mut chunk = ChunkWriter::new(buffer, core, cursor.position(), lost).ok()?;
    while chunk.room() > 0
        && let Some(record) = cursor.read(ring)
    {
        // There is room.
        let _ = chunk.push(change(record));
    }
    cursor.give_back(ring);
    (chunk.count() > 0 || lost > 0).then(|| chunk.finish())
}
