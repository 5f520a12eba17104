//! The requests that an engine's storage has: for each tag what its completion needs.

use alloc::boxed::Box;

use engine::devices::table;
use engine::slots::MAX_SLOTS;
use virtio::queue::{Origin, Token};

use crate::flushes::Before;
use crate::storage::{MAX_TAGS, Operation, Tag};

/// Most requests of a device that are in flight at the same time. More wait in its queues. The table has room for so
/// many of eight devices.
pub const MAX_IN_FLIGHT: u16 = 128;

/// A request in flight, as its completion needs it.
pub struct Entry {
    /// The right to complete it.
    pub token: Token,
    /// Its device's slot.
    pub slot: u8,
    /// What it does.
    pub operation: Operation,
    /// Bytes of its data, or of the range that it names.
    pub bytes: u64,
    /// Guest-physical address of the status byte.
    pub status: u64,
}

/// What a read or a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
    DurableWrite,
}

/// A read or a write in flight. The fields are those of an [`Entry`].
pub struct Transfer {
    pub token: Token,
    pub slot: u8,
    pub direction: Direction,
    pub bytes: u64,
    pub status: u64,
}

impl Transfer {
    #[inline(always)]
    pub const fn operation(&self) -> Operation {
        match self.direction {
            Direction::Read => Operation::Read,
            Direction::Write => Operation::Write { durable: false },
            Direction::DurableWrite => Operation::Write { durable: true },
        }
    }

    const fn into_entry(self) -> Entry {
        let operation = self.operation();
        let Self { token, slot, bytes, status, .. } = self;
        Entry { token, slot, operation, bytes, status }
    }
}

const _: () = assert!(size_of::<Place>() == 64, "one cache line");
const _: () = assert!(MAX_SLOTS <= u8::MAX as usize + 1 && MAX_TAGS < u16::MAX as usize);

/// The place of a tag. It is a cache line.
#[repr(align(64))]
enum Place {
    /// The tag is free. `next` is the next free tag, or [`MAX_TAGS`].
    Free { next: Tag },
    /// A read or a write.
    Transfer(Transfer),
    /// Another request.
    Held(Entry),
    /// A request that was cancelled. Its buffers are still in use.
    Cancelled { slot: u8, operation: Operation },
}

/// A request that has ended.
pub struct Removed {
    pub slot: u8,
    pub operation: Operation,
    /// What it found when it was submitted, if it says something of flushes.
    pub before: Before,
    /// The request, unless it was cancelled.
    pub entry: Option<Entry>,
}

/// The requests in flight, by tag.
pub struct InFlight {
    places: Box<[Place; MAX_TAGS]>,
    /// What those requests found that say something of flushes when they end.
    befores: Box<[Before; MAX_TAGS]>,
    /// The first free tag, or [`MAX_TAGS`].
    free: Tag,
    count: usize,
}

/// A place for a request, under a free tag.
pub struct Vacancy<'f> {
    place: &'f mut Place,
    next: Tag,
    free: &'f mut Tag,
    count: &'f mut usize,
    befores: &'f mut [Before; MAX_TAGS],
}

impl Vacancy<'_> {
    /// The tag.
    #[inline(always)]
    pub const fn tag(&self) -> Tag {
        *self.free
    }

    /// Adds a request. `before` is what it found when it was submitted.
    #[inline(always)]
    pub fn insert(self, entry: Entry, before: impl FnOnce() -> Before) {
        let Self { place, next, free, count, befores } = self;
        if entry.operation.tells_of_flushes()
            && let Some(place) = befores.get_mut(usize::from(free.0))
        {
            *place = before();
        }
        let direction = match entry.operation {
            Operation::Read => Some(Direction::Read),
            Operation::Write { durable: false } => Some(Direction::Write),
            Operation::Write { durable: true } => Some(Direction::DurableWrite),
            _ => None,
        };
        *place = match direction {
            Some(direction) => {
                let Entry { token, slot, bytes, status, .. } = entry;
                Place::Transfer(Transfer { token, slot, direction, bytes, status })
            }
            None => Place::Held(entry),
        };
        *free = next;
        *count = count.wrapping_add(1);
    }
}

impl InFlight {
    pub fn new() -> Self {
        let mut tags = (1..).map(Tag);
        let place = || Place::Free { next: tags.next().unwrap_or(Tag(MAX_TAGS as u16)) };
        Self { places: table(place), befores: table(Before::default), free: Tag(0), count: 0 }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A place for a request. `None`: there is no free tag.
    #[inline(always)]
    pub fn vacancy(&mut self) -> Option<Vacancy<'_>> {
        let Self { places, befores, free, count } = self;
        match places.get_mut(usize::from(free.0)) {
            Some(place @ &mut Place::Free { next }) => Some(Vacancy { place, next, free, count, befores }),
            _ => None,
        }
    }

    /// The slot and the queue of a read or a write that was not cancelled.
    #[inline(always)]
    pub fn transfer_of(&self, tag: Tag) -> Option<(u8, u16)> {
        match self.places.get(usize::from(tag.0)) {
            Some(Place::Transfer(transfer)) => Some((transfer.slot, transfer.token.queue())),
            _ => None,
        }
    }

    /// Removes a read or a write of this slot and this queue, if it was not cancelled. Returns `None` if there is none with
    /// this tag.
    #[inline(always)]
    pub fn remove_transfer(&mut self, tag: Tag, slot: u8, origin: Origin) -> Option<Transfer> {
        let place = self.places.get_mut(usize::from(tag.0))?;
        if !matches!(place, Place::Transfer(entry) if entry.slot == slot && entry.token.origin() == origin) {
            return None;
        }
        let Place::Transfer(transfer) = core::mem::replace(place, Place::Free { next: self.free }) else { return None };
        self.free = tag;
        self.count = self.count.wrapping_sub(1);
        Some(transfer)
    }

    /// Removes a request. Returns `None` if there is none with this tag.
    pub fn remove(&mut self, tag: Tag) -> Option<Removed> {
        let place = self.places.get_mut(usize::from(tag.0)).filter(|place| !matches!(place, Place::Free { .. }))?;
        let (slot, operation, entry) = match core::mem::replace(place, Place::Free { next: self.free }) {
            Place::Transfer(transfer) => (transfer.slot, transfer.operation(), Some(transfer.into_entry())),
            Place::Held(entry) => (entry.slot, entry.operation, Some(entry)),
            Place::Cancelled { slot, operation } => (slot, operation, None),
            Place::Free { .. } => return None,
        };
        self.free = tag;
        self.count = self.count.wrapping_sub(1);
        let before = self.befores.get(usize::from(tag.0)).filter(|_| operation.tells_of_flushes());
        Some(Removed { slot, operation, before: before.copied().unwrap_or_default(), entry })
    }

    /// Cancels the requests of a slot: drops their tokens. Calls `cancel` for each that was not cancelled before; if it
    /// returns true, the request is removed. Returns how many were removed, and whether any is left.
    pub fn cancel(&mut self, slot: usize, mut cancel: impl FnMut(Tag) -> bool) -> (u16, bool) {
        let (mut removed, mut left) = (0_u16, false);
        for (tag, place) in (0..).map(Tag).zip(self.places.iter_mut()) {
            let (of, operation) = match place {
                Place::Transfer(transfer) => (transfer.slot, transfer.operation()),
                Place::Held(entry) => (entry.slot, entry.operation),
                Place::Cancelled { slot: of, .. } => {
                    left |= usize::from(*of) == slot;
                    continue;
                }
                Place::Free { .. } => continue,
            };
            if usize::from(of) != slot {
                continue;
            }
            if cancel(tag) {
                *place = Place::Free { next: core::mem::replace(&mut self.free, tag) };
                removed = removed.saturating_add(1);
            } else {
                *place = Place::Cancelled { slot: of, operation };
                left = true;
            }
        }
        self.count = self.count.saturating_sub(removed.into());
        (removed, left)
    }
}
