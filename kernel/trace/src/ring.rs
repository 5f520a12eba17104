//! The ring of one core: one writer, one reader on another core.
//!
//! The writer never waits and never looks at the reader. One comparison tells it whether the ring is full and stops. The reader copies a
//! record, and then reads the writer's position again. If the writer may have come round meanwhile, the copy is thrown away
//! and counted as lost. So the reader never returns a torn record. The model in `ring_model.rs` compiles this file on loom's
//! atomics.
//!
//! Records have numbers from 0. Record `n` is in slot `n % capacity`. While the position is `p`, the writer may be writing
//! record `p`, which is where record `p - capacity` was. So the reader can have the last `capacity - 1` records.

use core::ops::Deref;

use super::atomics::{AtomicU64, Ordering, fence, own};
use crate::Record;

/// Words of a [`Record`] in a ring.
const RECORD: usize = 4;

/// Memory for one entry of `W` words: for a [`Record`], if nothing else is said. All zero is a good first state.
#[derive(Debug)]
#[repr(transparent)]
pub struct Slot<const W: usize = RECORD>([AtomicU64; W]);

impl<const W: usize> Slot<W> {
    /// An empty slot.
    #[must_use]
    pub fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const W: usize> Default for Slot<W> {
    fn default() -> Self {
        Self::new()
    }
}

/// What the writer does when the ring is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It writes over the oldest records. What the reader has not taken is lost.
    #[default]
    Overwrite,
    /// It drops and counts new records until the reader has taken old ones.
    Stop,
}

/// A ring of one core. `S` is the memory for its entries, each of `W` words. "Record" below means such an entry.
#[derive(Debug)]
pub struct Ring<S, const W: usize = RECORD> {
    slots: S,
    /// Records written so far. Only the writer changes it.
    position: AtomicU64,
    /// Records dropped because the ring was full. Only the writer changes it.
    dropped: AtomicU64,
    /// The first number that is dropped because the ring is full; [`u64::MAX`] if the writer overwrites. Only the reader changes it,
    /// and while the writer overwrites it stays.
    end: Line,
    /// Records that the reader has done with. Only the reader uses it.
    taken: Line,
}

/// A word in a line of the cache of its own: the reader's stores do not take the writer's line.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

impl<S: Deref<Target = [Slot]>> Ring<S> {
    /// Writes a record. Only the ring's own core calls it, and not from a handler that can interrupt this function.
    #[inline]
    pub fn write(&self, record: Record) {
        self.write_words(record.to_words());
    }

    /// Begins to write several records. Who may call it: see [`Ring::write`]. Nothing else may write before the writer is
    /// dropped.
    #[inline]
    pub fn writer(&self) -> Writer<'_> {
        Writer {
            slots: &self.slots,
            number: own(&self.position),
            position: &self.position,
            dropped: &self.dropped,
            // Acquire: as in `Ring::write_words`. What the reader takes after this is not used.
            end: self.end.0.load(Ordering::Acquire),
        }
    }
}

/// Writes several records, with less to do for each than [`Ring::write`] has.
#[derive(Debug)]
pub struct Writer<'r> {
    slots: &'r [Slot],
    /// Number of the next record.
    number: u64,
    position: &'r AtomicU64,
    dropped: &'r AtomicU64,
    /// The first number that is dropped, because the ring is full. The number of a record is always below [`u64::MAX`].
    end: u64,
}

impl Writer<'_> {
    /// Writes the next record, or drops it if the ring is full and stops.
    #[inline(always)]
    pub fn write(&mut self, record: Record) {
        if self.number >= self.end {
            self.dropped.store(own(self.dropped).wrapping_add(1), Ordering::Relaxed);
            return;
        }
        self.store(record);
    }

    /// Writes the next three records. One comparison says whether there is room for all of them.
    #[inline(always)]
    pub fn write_three(&mut self, first: Record, second: Record, third: Record) {
        if self.number.wrapping_add(2) < self.end {
            self.store(first);
            self.store(second);
            self.store(third);
        } else {
            self.write(first);
            self.write(second);
            self.write(third);
        }
    }

    #[inline(always)]
    fn store(&mut self, record: Record) {
        // As in `Ring::write_words`.
        fence(Ordering::Release);
        let mask = self.slots.len().wrapping_sub(1);
        if let Some(slot) = self.slots.get(self.number as usize & mask) {
            for (word, value) in slot.0.iter().zip(record.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.number = self.number.wrapping_add(1);
        self.position.store(self.number, Ordering::Release);
    }
}

impl<S: Deref<Target = [Slot<W>]>, const W: usize> Ring<S, W> {
    /// A ring in this memory. Returns `None` unless the number of slots is a power of two from 2 on.
    pub fn new(slots: S) -> Option<Self> {
        if slots.len() < 2 || !slots.len().is_power_of_two() {
            return None;
        }
        Some(Self {
            slots,
            position: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            end: Line(AtomicU64::new(u64::MAX)),
            taken: Line(AtomicU64::new(0)),
        })
    }

    /// Number of records that the reader can have at a time.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (self.slots.len() as u64).saturating_sub(1)
    }

    /// Chooses what happens when the ring is full. Only the reader calls it.
    pub fn when_full(&self, what: WhenFull) {
        let end = match what {
            WhenFull::Stop => self.taken.0.load(Ordering::Relaxed).wrapping_add(self.capacity()),
            WhenFull::Overwrite => u64::MAX,
        };
        self.end.0.store(end, Ordering::Release);
    }

    /// Records written so far. [`Ring::dropped`] ones are not among them.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Records dropped because the ring was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Writes the words of a record. Who may call it: see [`Ring::write`].
    #[inline(always)]
    pub fn write_words(&self, words: [u64; W]) {
        let number = own(&self.position);
        // Acquire: the reader has read the slots before it gives them back.
        if number >= self.end.0.load(Ordering::Acquire) {
            self.dropped.store(own(&self.dropped).wrapping_add(1), Ordering::Relaxed);
            return;
        }
        // A reader that sees one of the words below also sees a position of at least `number`: this fence pairs with the one
        // in `copy`.
        fence(Ordering::Release);
        if let Some(slot) = self.slot(number) {
            for (word, value) in slot.0.iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.position.store(number.wrapping_add(1), Ordering::Release);
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot<W>> {
        let mask = self.slots.len().wrapping_sub(1);
        self.slots.get(number as usize & mask)
    }

    /// Copies the slot of a record. The copy is good only if [`Ring::is_intact`] says so afterwards.
    pub(super) fn copy_words(&self, number: u64) -> [u64; W] {
        let words = self.slot(number).map_or([0; W], |slot| {
            let mut words = [0; W];
            for (to, from) in words.iter_mut().zip(&slot.0) {
                *to = from.load(Ordering::Relaxed);
            }
            words
        });
        // If a word is one of a later record, the position that is read next is at least that record's number: see
        // `Ring::write_words`.
        fence(Ordering::Acquire);
        words
    }

    /// Whether the writer has not begun to write over a record.
    pub(super) fn is_intact(&self, number: u64) -> bool {
        self.position.load(Ordering::Relaxed).wrapping_sub(number) <= self.capacity()
    }

    fn done_with(&self, next: u64) {
        self.taken.0.store(next, Ordering::Relaxed);
        if self.end.0.load(Ordering::Relaxed) != u64::MAX {
            self.end.0.store(next.wrapping_add(self.capacity()), Ordering::Release);
        }
    }
}

/// The place of the reader in a ring. A ring has one reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    next: u64,
    /// The part of [`Ring::dropped`] that was reported.
    dropped: u64,
    /// All records that were reported as lost.
    lost: u64,
}

impl Cursor {
    /// At the beginning of a ring.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, dropped: 0, lost: 0 }
    }

    /// Number of the record that is read next.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.next
    }

    /// Goes past all records that are there now, and forgets the losses so far.
    pub fn skip_all<S: Deref<Target = [Slot<W>]>, const W: usize>(&mut self, ring: &Ring<S, W>) {
        self.next = ring.written();
        self.dropped = ring.dropped();
        self.lost = 0;
        ring.done_with(self.next);
    }

    /// Returns how many records [`Cursor::skip_lost`] has reported since the beginning, or since [`Cursor::skip_all`].
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Goes to the oldest record that is still there. Returns how many records were lost since the last call: written
    /// over before they were read, and dropped by the writer.
    pub fn skip_lost<S: Deref<Target = [Slot<W>]>, const W: usize>(&mut self, ring: &Ring<S, W>) -> u64 {
        let oldest = ring.written().saturating_sub(ring.capacity()).max(self.next);
        let overwritten = oldest.wrapping_sub(self.next);
        self.next = oldest;
        let dropped = ring.dropped();
        let lost = dropped.wrapping_sub(core::mem::replace(&mut self.dropped, dropped)).wrapping_add(overwritten);
        self.lost = self.lost.wrapping_add(lost);
        lost
    }

    /// Gives the slots of all records before this place back to a writer that stops when the ring is full.
    pub fn give_back<S: Deref<Target = [Slot<W>]>, const W: usize>(&self, ring: &Ring<S, W>) {
        ring.done_with(self.next);
    }

    /// Reads the next record. Returns `None` if there is none, or if it was just lost: then [`Cursor::skip_lost`] goes
    /// on.
    pub fn read<S: Deref<Target = [Slot]>>(&mut self, ring: &Ring<S>) -> Option<Record> {
        self.read_words(ring).map(Record::from_words)
    }

    /// Reads the words of the next record, as [`Cursor::read`] does.
    pub fn read_words<S: Deref<Target = [Slot<W>]>, const W: usize>(&mut self, ring: &Ring<S, W>) -> Option<[u64; W]> {
        if self.next >= ring.written() {
            return None;
        }
        let words = ring.copy_words(self.next);
        if !ring.is_intact(self.next) {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(words)
    }
}
