//! A packed ring (virtio 1.3 ch. 2.8).
//!
//! Driver and device write the same descriptors, round after round. The meaning of a descriptor's AVAIL and USED bits
//! depends on the wrap counter of the round. So a position here contains its wrap counter.
//!
//! ```text
//!          published      next_used        next_avail
//!              ▼              ▼                 ▼
//!   ── used ───┬── completed ─┬── taken ────────┬── the driver may offer ──
//!              └─ together at most the ring's size ─┘
//! ```
//!
//! The descriptor at `published` keeps its AVAIL and USED bits until all completions are published. The driver reads it
//! first and stops there. The driver alone chooses buffer ids; the device returns them unchanged.

#![allow(unsafe_code, reason = "the ring is kept as it is found in the host's memory")]

use core::mem::take;
use core::sync::atomic::{Ordering, fence};

use memory::GuestMemory;
use memory::ring::{Slots, Words};

use super::request::{Backlog, INEXACT_BACKLOG, Taken, UsedNotification};
use super::state::{QueueState, WRAP};
use crate::chain::{self, Chain, DESCRIPTOR_BYTES, Descriptor, Segments, Table, WRITE};
use crate::config::{Features, MAX_QUEUE_SIZE, QueueConfig};
use crate::fault::Fault;

pub(super) const AVAIL: u16 = 1 << 7;
pub(super) const USED: u16 = 1 << 15;

/// Event suppression flags (2.8.14): every event is notified.
const EVENTS_ENABLE: u32 = 0;
/// Event suppression flags: no event is notified.
const EVENTS_DISABLE: u32 = 1;
/// Event suppression flags: the event at one descriptor is notified.
const EVENTS_DESC: u32 = 2;
/// Mask of the event suppression flags. They are above the 16 bits of the position.
const EVENTS_FLAGS: u32 = 3;
/// Bytes of an event suppression structure.
const EVENT_BYTES: u64 = 4;

/// A descriptor's index and its wrap counter: the index if the counter is 1, the index plus the ring's size if it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u16);

// A position is less than two rounds, and `on` adds up to one: three rounds must fit in 16 bits. So no sum below overflows.
// Only the difference in `ahead_of` may, until two rounds are added to it.
const _: () = assert!(MAX_QUEUE_SIZE <= 0x4000);

impl Position {
    /// The descriptor's number.
    #[inline(always)]
    pub(super) const fn slot(self, size: u16) -> u16 {
        if self.0 < size { self.0 } else { self.0.wrapping_sub(size) }
    }

    /// The wrap counter.
    #[inline(always)]
    pub(super) const fn wrap(self, size: u16) -> bool {
        self.0 < size
    }

    /// The position `by` descriptors later; `by` is at most the ring's size.
    #[inline(always)]
    const fn on(self, by: u16, size: u16) -> Self {
        let (at, rounds) = (self.0.wrapping_add(by), two_rounds(size));
        Self(if at < rounds { at } else { at.wrapping_sub(rounds) })
    }

    /// Its distance from `other` in descriptors, modulo two rounds.
    #[inline(always)]
    const fn ahead_of(self, other: Self, size: u16) -> u16 {
        let ahead = self.0.wrapping_sub(other.0);
        if self.0 >= other.0 { ahead } else { ahead.wrapping_add(two_rounds(size)) }
    }

    const fn bits(self, size: u16) -> u16 {
        self.slot(size) | if self.wrap(size) { WRAP } else { 0 }
    }

    /// Decodes a position. Returns `None` if there is no such descriptor.
    fn of_bits(bits: u16, size: u16) -> Option<Self> {
        let slot = bits & !WRAP;
        (slot < size).then(|| Self(if bits & WRAP != 0 { slot } else { slot.wrapping_add(size) }))
    }

    /// AVAIL and USED of a descriptor that is offered at this position.
    #[inline(always)]
    pub(super) const fn offered(self, size: u16) -> u16 {
        if self.wrap(size) { AVAIL } else { USED }
    }

    /// AVAIL and USED of a descriptor that is used at this position.
    #[inline(always)]
    pub(super) const fn used(self, size: u16) -> u16 {
        if self.wrap(size) { AVAIL | USED } else { 0 }
    }
}

/// The positions of a ring.
#[inline(always)]
const fn two_rounds(size: u16) -> u16 {
    size.wrapping_mul(2)
}

/// The second half of a used descriptor.
#[inline(always)]
pub(super) const fn used_word(id: u32, written: u32, flags: u16) -> u64 {
    written as u64 | (id as u64) << 32 | (flags as u64) << 48
}

/// WRITE if the device wrote something. Only then does the length have a meaning (2.8.4).
#[inline(always)]
pub(super) const fn write_flag(written: u32) -> u16 {
    if written != 0 { WRITE } else { 0 }
}

/// A packed ring in use.
pub(super) struct Packed {
    table: Table,
    /// The ring in host memory. `None` if it cannot be used for batches.
    pub(super) entries: Option<Slots<'static, [u64; 2]>>,
    /// The flags of its descriptors in host memory.
    flags: Words<'static, { DESCRIPTOR_BYTES as usize }>,
    /// Guest-physical addresses of the driver's and the device's event suppression structures.
    driver: u64,
    device: u64,
    event_idx: bool,
    /// The next descriptor to take.
    pub(super) next_avail: Position,
    /// The position of the next used descriptor.
    pub(super) next_used: Position,
    /// The first descriptor that the driver cannot see as used.
    pub(super) published: Position,
    /// Descriptors published since the last call of `used_notification`. A position would not do: if the driver offers
    /// descriptors again in between, the count may exceed two rounds.
    unnotified: u16,
    /// The final flags of the descriptor at `published`, if it is completed.
    first_flags: u16,
}

impl Packed {
    /// As [`super::Queue::new`].
    ///
    /// # Safety
    /// `memory`, or a clone of it, must live as long as the ring.
    pub(super) unsafe fn new(
        memory: &GuestMemory,
        features: Features,
        max_size: u16,
        state: &QueueState,
    ) -> Result<Self, Fault> {
        let QueueConfig { size, desc, avail, used, .. } = state.config;
        // The size need not be a power of two (2.8.10.1).
        if size == 0 || size > max_size.min(MAX_QUEUE_SIZE) {
            return Err(Fault::QueueSize);
        }
        let ring_bytes = DESCRIPTOR_BYTES * u64::from(size);
        for (at, bytes, align) in [(desc, ring_bytes, 16), (avail, EVENT_BYTES, 4), (used, EVENT_BYTES, 4)] {
            if !at.is_multiple_of(align) || memory.translate(at, bytes).is_err() {
                return Err(Fault::RingAddress);
            }
        }
        let next =
            Position::of_bits(state.avail, size).filter(|_| state.avail == state.used).ok_or(Fault::AvailIndex)?;
        // SAFETY: the slots are used only while the ring lives. The memory lives as long, as the caller says.
        let entries = memory.slots(desc, size).map(|slots| unsafe { slots.kept() });
        let flags = memory.words(desc.wrapping_add(14), size).ok_or(Fault::RingAddress)?;
        let ring = Self {
            // SAFETY: as above.
            flags: unsafe { flags.kept() },
            table: Table { desc, size, longest: size, indirect: features.contains(Features::INDIRECT_DESC) },
            entries,
            driver: avail,
            device: used,
            event_idx: features.contains(Features::EVENT_IDX),
            next_avail: next,
            next_used: next,
            published: next,
            unnotified: 0,
            first_flags: 0,
        };
        ring.disarm(memory)?;
        Ok(ring)
    }

    /// The positions from which it can be resumed. `None` while a completion is not published.
    pub(super) fn positions(&self) -> Option<(u16, u16)> {
        let bits = |at: Position| at.bits(self.table.size);
        (self.next_used == self.published).then(|| (bits(self.next_avail), bits(self.next_used)))
    }

    /// As [`super::Queue::completion`].
    pub(super) const fn completion(&self, taken: &Taken) -> (u16, u16) {
        let size = self.table.size;
        (self.next_used.bits(size), self.next_used.on(taken.descriptors, size).bits(size))
    }

    /// Descriptors in the ring.
    #[inline(always)]
    pub(super) const fn size(&self) -> u16 {
        self.table.size
    }

    /// How many descriptors the driver can have offered: the ring's size minus those that it cannot yet see as used.
    #[inline(always)]
    pub(super) const fn offerable(&self) -> u16 {
        self.table.size.saturating_sub(self.next_avail.ahead_of(self.published, self.table.size))
    }

    #[inline(always)]
    const fn at(&self, position: Position) -> u64 {
        self.descriptor(position.slot(self.table.size))
    }

    /// The guest-physical address of a descriptor. Whether it is in the guest's memory is checked at each access.
    #[inline(always)]
    const fn descriptor(&self, slot: u16) -> u64 {
        self.table.desc.wrapping_add(DESCRIPTOR_BYTES.wrapping_mul(slot as u64))
    }

    /// Reads a descriptor's flags. Returns whether it is offered.
    #[inline]
    fn is_offered(&self, position: Position) -> bool {
        let size = self.table.size;
        self.flags
            .get(position.slot(size))
            .is_some_and(|flags| flags.load_acquire() & (AVAIL | USED) == position.offered(size))
    }

    /// 1 if there is a request, 0 if there is none.
    #[inline]
    pub(super) fn available(&self) -> Result<u16, Fault> {
        Ok(u16::from(self.offerable() != 0 && self.is_offered(self.next_avail)))
    }

    /// Whether no request is offered after the next `count` requests, which have one descriptor each. The flags that it
    /// reads are usually in a cache line that was read just before.
    #[inline(always)]
    pub(super) fn ends_after(&self, count: u16) -> bool {
        self.offerable() == count || !self.is_offered(self.next_avail.on(count, self.table.size))
    }

    /// Whether the next descriptor is not offered.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.is_offered(self.next_avail)
    }

    /// The next position to take.
    #[inline]
    pub(super) const fn place(&self) -> u16 {
        self.next_avail.0
    }

    /// Whether the driver has offered no request at `place`. It must not have been taken.
    #[inline]
    pub(super) fn ends_at(&self, place: u16) -> bool {
        !self.is_offered(Position(place))
    }

    /// Returns the first position that is not offered, and the distance to it. It uses bisection, because a driver
    /// offers descriptors in order.
    pub(super) fn backlog(&self) -> Backlog {
        let size = self.table.size;
        let (mut waiting, mut most) = (0, self.offerable().min(INEXACT_BACKLOG));
        let mut probe: u16 = 1;
        while waiting < most {
            let before = probe.saturating_sub(1);
            if self.is_offered(self.next_avail.on(before, size)) {
                waiting = probe;
            } else {
                most = before;
            }
            probe = waiting.saturating_add(most).div_ceil(2);
        }
        Backlog { index: self.next_avail.on(waiting, size).0, waiting }
    }

    #[inline]
    pub(super) fn pop(
        &mut self,
        memory: &GuestMemory,
        segments: &mut Segments,
    ) -> Result<Option<(Taken, Chain)>, Fault> {
        let (size, most, position) = (self.table.size, self.offerable(), self.next_avail);
        if most == 0 {
            return Ok(None);
        }
        let at = self.at(position);
        let rest = memory.read_u64(at.wrapping_add(8)).map_err(|_| Fault::RingAddress)?;
        let flags = (rest >> 48) as u16;
        if flags & (AVAIL | USED) != position.offered(size) {
            return Ok(None);
        }
        // Acquire: the address and the rest of the chain were written before these flags.
        fence(Ordering::Acquire);
        let addr = memory.read_u64(at).map_err(|_| Fault::RingAddress)?;
        let first = Descriptor::of_packed(addr, rest);
        let (chain, named) = chain::walk_packed(memory, &self.table, position.slot(size), first, most, segments)?;
        self.next_avail = position.on(named.descriptors, size);
        Ok(Some((Taken { id: named.id, position: position.0, descriptors: named.descriptors }, chain)))
    }

    /// Limits the descriptors of later chains.
    pub(super) fn limit_chains(&mut self, most: u16) {
        self.table.longest = most.min(self.table.size);
    }

    /// Where its chains' descriptors are.
    pub(super) const fn table(&self) -> &Table {
        &self.table
    }

    /// Takes the next request, which is one descriptor with buffer id `id`.
    #[inline(always)]
    pub(super) fn hold(&mut self, id: u16) -> Taken {
        let position = self.next_avail;
        self.next_avail = position.on(1, self.table.size);
        Taken { id, position: position.0, descriptors: 1 }
    }

    pub(super) fn rewind(&mut self, taken: &Taken) -> bool {
        let position = Position(taken.position);
        let last = position.on(taken.descriptors, self.table.size) == self.next_avail;
        if last {
            self.next_avail = position;
        }
        last
    }

    /// Completes a request. Returns the number of the descriptor that becomes a used one, and its second half, which the
    /// caller writes.
    #[inline(always)]
    pub(super) const fn complete_next(&mut self, taken: &Taken, written: u32) -> (u16, u64) {
        let position = self.next_used;
        let mut flags = position.used(self.table.size) | write_flag(written);
        if position.0 == self.published.0 {
            self.first_flags = flags;
            flags ^= USED;
        }
        self.next_used = position.on(taken.descriptors, self.table.size);
        (position.slot(self.table.size), used_word(taken.id as u32, written, flags))
    }

    #[inline]
    pub(super) fn complete(&mut self, memory: &GuestMemory, taken: &Taken, written: u32) -> Result<bool, Fault> {
        let (slot, word) = self.complete_next(taken, written);
        match self.entries {
            Some(entries) => entries.entry(slot).set_second(0, word),
            None => {
                let at = self.descriptor(slot).wrapping_add(8);
                memory.write_u64(at, word).map_err(|_| Fault::RingAddress)?;
            }
        }
        Ok(true)
    }

    /// Takes and completes the next `count` requests, which have one descriptor each. Their used descriptors are
    /// written already. `wrote`: the device wrote into the first request's buffer.
    #[inline(always)]
    pub(super) fn advance(&mut self, count: u16, wrote: bool) {
        let size = self.table.size;
        if self.next_used == self.published {
            self.first_flags = self.next_used.used(size) | write_flag(u32::from(wrote));
        }
        self.next_avail = self.next_avail.on(count, size);
        self.next_used = self.next_used.on(count, size);
    }

    /// Publishes all completions with one store of the first descriptor's flags.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published == self.next_used {
            return;
        }
        if let Some(flags) = self.flags.get(self.published.slot(self.table.size)) {
            // Release: a driver that sees these flags sees the descriptors after it and the buffers' contents.
            flags.store_release(self.first_flags);
        }
        self.unnotified = self.unnotified.saturating_add(self.next_used.ahead_of(self.published, self.table.size));
        self.published = self.next_used;
    }

    /// Returns whether the driver wants an interrupt. The order is that of a split ring (2.7.7.2): the driver writes
    /// its event suppression structure, then reads the descriptor.
    #[inline]
    pub(super) fn used_notification(&mut self, memory: &GuestMemory) -> Result<UsedNotification, Fault> {
        let count = take(&mut self.unnotified);
        if count == 0 {
            return Ok(UsedNotification::Nothing);
        }
        let suppression = memory.read_u32(self.driver).map_err(|_| Fault::RingAddress)?;
        let wanted = match suppression >> 16 & EVENTS_FLAGS {
            EVENTS_DISABLE => false,
            EVENTS_DESC if self.event_idx => self.is_among(suppression as u16, count),
            _ => true,
        };
        Ok(if wanted { UsedNotification::Wanted } else { UsedNotification::Suppressed })
    }

    /// Whether `event` names one of the last `count` descriptors that were published. Returns true if it names no
    /// descriptor of the ring.
    fn is_among(&self, event: u16, count: u16) -> bool {
        let size = self.table.size;
        Position::of_bits(event, size).is_none_or(|event| {
            // The descriptor at `published` is not published in this round. It was last published two rounds ago.
            let behind = self.published.ahead_of(event, size);
            (if behind == 0 { two_rounds(size) } else { behind }) <= count
        })
    }

    /// The first position that the driver cannot see as used.
    #[inline]
    pub(super) const fn published(&self) -> u16 {
        self.published.0
    }

    /// As [`super::Queue::distance`].
    #[inline]
    pub(super) const fn distance(&self, from: u16, to: u16) -> u16 {
        Position(to).ahead_of(Position(from), self.table.size)
    }

    /// As [`super::Queue::has_passed`].
    #[inline]
    pub(super) const fn has_passed(&self, position: u16, mark: u16) -> bool {
        self.distance(mark, position) < self.table.size
    }

    /// As [`super::Queue::driver_word`].
    #[inline]
    pub(super) fn driver_word(&self, memory: &GuestMemory) -> u32 {
        memory.read_u32(self.driver).unwrap_or_default()
    }

    /// As [`super::Queue::is_past`].
    #[inline]
    pub(super) fn is_past(&self, word: u32, mark: u16) -> bool {
        self.event_idx
            && word >> 16 & EVENTS_FLAGS == EVENTS_DESC
            && Position::of_bits(word as u16, self.table.size).is_some_and(|event| self.has_passed(event.0, mark))
    }

    /// As [`super::Queue::is_taken`].
    #[inline]
    pub(super) fn is_taken(&self, memory: &GuestMemory, mark: u16, word: u32) -> bool {
        let now = self.driver_word(memory);
        let names_one = self.event_idx && now >> 16 & EVENTS_FLAGS == EVENTS_DESC;
        now != word && (!names_one || self.is_past(now, mark))
    }

    pub(super) fn arm(&self, memory: &GuestMemory) -> Result<u16, Fault> {
        let suppression = if self.event_idx {
            // The driver notifies when it offers this very descriptor.
            EVENTS_DESC << 16 | u32::from(self.next_avail.bits(self.table.size))
        } else {
            EVENTS_ENABLE << 16
        };
        self.write_suppression(memory, suppression)?;
        // As for `used_notification`, with the roles exchanged.
        fence(Ordering::SeqCst);
        self.available()
    }

    pub(super) fn disarm(&self, memory: &GuestMemory) -> Result<(), Fault> {
        self.write_suppression(memory, EVENTS_DISABLE << 16)
    }

    fn write_suppression(&self, memory: &GuestMemory, suppression: u32) -> Result<(), Fault> {
        memory.write_u32(self.device, suppression).map_err(|_| Fault::RingAddress)
    }
}
