//! The requests that an engine's storage has: for each tag the token and what its completion needs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use engine::devices::table;
use virtio::queue::Token;

use crate::flushes::Before;
use crate::storage::{MAX_TAGS, Operation, Tag};

/// Most requests of a device that are in flight at the same time. More wait in its queues. The table has room for so
/// many of eight devices.
pub const MAX_IN_FLIGHT: u16 = 128;

/// A request in flight.
pub struct Entry {
    /// Its device's slot.
    pub slot: usize,
    /// The right to complete it. `None` if it was cancelled; its buffers are still in use.
    pub token: Option<Token>,
    /// What it does.
    pub operation: Operation,
    /// Bytes of its data, or of the range that it names.
    pub bytes: u64,
    /// Guest-physical address of the status byte.
    pub status: u64,
    /// What it found when it was submitted, if it is a flush.
    pub before: Before,
}

/// The requests in flight, by tag.
pub struct InFlight {
    entries: Box<[Option<Entry>; MAX_TAGS]>,
    /// Free tags, the next one last.
    free: Vec<Tag>,
}

impl InFlight {
    pub fn new() -> Self {
        Self { entries: table(|| None), free: (0..MAX_TAGS as u16).rev().map(Tag).collect() }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.free.len() == MAX_TAGS
    }

    /// The tag that [`InFlight::insert`] uses next.
    pub fn next_tag(&self) -> Option<Tag> {
        self.free.last().copied()
    }

    /// Adds a request under [`InFlight::next_tag`].
    pub fn insert(&mut self, entry: Entry) {
        if let Some(place) = self.free.pop().and_then(|Tag(n)| self.entries.get_mut(usize::from(n))) {
            *place = Some(entry);
        }
    }

    /// Removes a request. Returns `None` if there is none with this tag.
    pub fn remove(&mut self, tag: Tag) -> Option<Entry> {
        let entry = self.entries.get_mut(usize::from(tag.0))?.take()?;
        // There is room: the tag was taken from this list.
        self.free.push(tag);
        Some(entry)
    }

    /// Cancels the requests of a slot: drops their tokens. Calls `cancel` for each that was not cancelled before; if it
    /// returns true, the request is removed. Returns how many were removed, and whether any is left.
    pub fn cancel(&mut self, slot: usize, mut cancel: impl FnMut(Tag) -> bool) -> (u16, bool) {
        let (mut removed, mut left) = (0, false);
        for n in 0..MAX_TAGS as u16 {
            let Some(place) = self.entries.get_mut(usize::from(n)) else { break };
            let Some(entry) = place.as_mut().filter(|entry| entry.slot == slot) else { continue };
            if entry.token.take().is_some() && cancel(Tag(n)) {
                *place = None;
                self.free.push(Tag(n));
                removed += 1;
            } else {
                left = true;
            }
        }
        (removed, left)
    }
}
