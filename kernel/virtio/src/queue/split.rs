//! A split ring (virtio 1.3 ch. 2.7).
//!
//! While the engine polls the queue, the driver must not notify. The device says so with NO_NOTIFY. With EVENT_IDX it
//! keeps `avail_event` half of the index space ahead of the driver, and moves it on before the driver gets there.

#![allow(unsafe_code, reason = "the rings are kept as they are found in the host's memory")]

use core::sync::atomic::{Ordering, fence};

use memory::GuestMemory;
use memory::ring::{Slots, Word};

use super::request::{Backlog, INEXACT_BACKLOG, Taken, UsedNotification};
use super::state::QueueState;
use crate::chain::{self, Chain, DESCRIPTOR_BYTES, Segments, Table};
use crate::config::{Features, MAX_QUEUE_SIZE, QueueConfig};
use crate::fault::Fault;

const USED_F_NO_NOTIFY: u16 = 1;
const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// How far `avail_event` is put ahead of the next request, in entries: half of the index space.
const EVENT_AHEAD: u16 = 0x8000;
/// `avail_event` is moved on when it is fewer entries ahead than this. A queue is smaller, so the driver never gets
/// there.
const EVENT_REFRESH: u16 = 0x4000;
const _: () = assert!(MAX_QUEUE_SIZE < EVENT_REFRESH);

pub(super) const WORDS: usize = MAX_QUEUE_SIZE as usize / 64;

/// The available ring, the descriptor table and the used ring in host memory.
type Rings = (Slots<'static, u16>, Slots<'static, [u64; 2]>, Slots<'static, [u32; 2]>);

/// Fields of the rings that every turn accesses, in host memory.
struct Words {
    /// The available index. The driver writes it.
    avail_index: Word<'static>,
    /// The flags of the available ring. The driver writes them.
    avail_flags: Word<'static>,
    /// `used_event`. The driver writes it.
    used_event: Word<'static>,
    /// The used index. The device writes it.
    used_index: Word<'static>,
}

/// A split ring in use.
pub(super) struct Split {
    table: Table,
    /// `None` if one of the rings cannot be used for batches.
    pub(super) rings: Option<Rings>,
    words: Words,
    avail: u64,
    used: u64,
    event_idx: bool,
    /// The next position of the available ring to take.
    pub(super) next_avail: u16,
    /// The available index, as it was last read and checked.
    known_avail: u16,
    /// The next position of the used ring to fill.
    pub(super) next_used: u16,
    /// The used index that the driver can see.
    published_used: u16,
    /// The used index at the last call of `used_notification`.
    notified_used: u16,
    /// The `avail_event` in guest memory.
    avail_event: u16,
    armed: bool,
    pub(super) outstanding: [u64; WORDS],
}

impl Split {
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
        if !size.is_power_of_two() || size > max_size.min(MAX_QUEUE_SIZE) {
            return Err(Fault::QueueSize);
        }
        let n = u64::from(size);
        let (avail_entries, used_entries) = (n.saturating_mul(2), n.saturating_mul(8));
        // Both rings end in a word for EVENT_IDX, which is there whether it is used or not (2.7.1).
        let (avail_bytes, used_bytes) = (avail_entries.saturating_add(6), used_entries.saturating_add(6));
        for (at, bytes, align) in
            [(desc, DESCRIPTOR_BYTES.saturating_mul(n), 16), (avail, avail_bytes, 2), (used, used_bytes, 4)]
        {
            if !at.is_multiple_of(align) || memory.translate(at, bytes).is_err() {
                return Err(Fault::RingAddress);
            }
        }
        // None of the addresses below wraps: the rings are in the guest's memory.
        let (avail_ring, used_ring) = (avail.wrapping_add(4), used.wrapping_add(4));
        let rings = match (memory.slots(avail_ring, size), memory.slots(desc, size), memory.slots(used_ring, size)) {
            // SAFETY: the slots are used only while the ring lives. The memory lives as long, as the caller says.
            (Some(avail), Some(desc), Some(used)) => unsafe { Some((avail.kept(), desc.kept(), used.kept())) },
            _ => None,
        };
        let word = |at: u64| {
            // SAFETY: as for the rings.
            memory.word(at).map(|word| unsafe { word.kept() }).ok_or(Fault::RingAddress)
        };
        let words = Words {
            avail_index: word(avail.wrapping_add(2))?,
            avail_flags: word(avail)?,
            used_event: word(avail_ring.wrapping_add(avail_entries))?,
            used_index: word(used.wrapping_add(2))?,
        };
        let mut queue = Self {
            rings,
            words,
            table: Table { desc, size, longest: size, indirect: features.contains(Features::INDIRECT_DESC) },
            avail,
            used,
            event_idx: features.contains(Features::EVENT_IDX),
            next_avail: state.avail,
            known_avail: state.avail,
            next_used: state.used,
            published_used: state.used,
            notified_used: state.used,
            avail_event: 0,
            armed: false,
            outstanding: [0; WORDS],
        };
        queue.disarm(memory)?;
        Ok(queue)
    }

    /// Its positions in the available and the used ring. `None` while a completion is not published.
    pub(super) fn positions(&self) -> Option<(u16, u16)> {
        (self.next_used == self.published_used).then_some((self.next_avail, self.next_used))
    }

    /// As [`super::Queue::completion`].
    pub(super) const fn completion(&self, _: &Taken) -> (u16, u16) {
        (self.next_used, self.next_used.wrapping_add(1))
    }

    /// The entry of a position. The size is a power of two.
    #[inline(always)]
    const fn slot(&self, position: u16) -> u16 {
        position & self.table.size.wrapping_sub(1)
    }

    /// Requests known from the last read of the available index.
    #[inline(always)]
    const fn known(&self) -> u16 {
        self.known_avail.wrapping_sub(self.next_avail)
    }

    /// Returns how many requests can be taken. It reads the driver's index only if no request is known.
    #[inline]
    pub(super) fn available(&mut self) -> Result<u16, Fault> {
        let known = self.known();
        if known == 0 { self.read_available() } else { Ok(known) }
    }

    /// Whether no request is known after the next `count`.
    #[inline(always)]
    pub(super) fn ends_after(&self, count: u16) -> bool {
        self.known() == count
    }

    /// Returns the available index and its distance from the next request to take.
    #[inline]
    pub(super) fn backlog(&self) -> Backlog {
        // If many requests are known, the index is not read: the driver writes its cache line all the time.
        let index = if self.known() >= INEXACT_BACKLOG { self.known_avail } else { self.words.avail_index.load() };
        Backlog { index, waiting: index.wrapping_sub(self.next_avail) }
    }

    /// Whether no request is known and the driver has offered none since.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.known() == 0 && self.words.avail_index.load() == self.next_avail
    }

    /// The next position to take.
    #[inline]
    pub(super) const fn place(&self) -> u16 {
        self.next_avail
    }

    /// Whether the driver has offered no request at `place` or after it. It must not have been taken.
    #[inline]
    pub(super) fn ends_at(&self, place: u16) -> bool {
        self.words.avail_index.load() == place
    }

    /// Reads the available index. Acquire: entries and descriptors that are read afterwards are at least as new.
    fn read_available(&mut self) -> Result<u16, Fault> {
        let index = self.words.avail_index.load_acquire();
        let known = self.known();
        let new = index.wrapping_sub(self.known_avail);
        // A step back is nearly 65,536 ahead in this arithmetic, so it is refused too.
        let all = known.checked_add(new).filter(|&all| all <= self.table.size).ok_or(Fault::AvailIndex)?;
        self.known_avail = index;
        Ok(all)
    }

    #[inline]
    pub(super) fn pop(
        &mut self,
        memory: &GuestMemory,
        segments: &mut Segments,
    ) -> Result<Option<(Taken, Chain)>, Fault> {
        if self.available()? == 0 {
            return Ok(None);
        }
        let position = self.next_avail;
        let at = self.avail.wrapping_add(4).wrapping_add(2 * u64::from(self.slot(position)));
        let head = memory.read_u16(at).map_err(|_| Fault::RingAddress)?;
        if head >= self.table.size {
            return Err(Fault::Head);
        }
        if self.holds(head) {
            return Err(Fault::HeadOutstanding);
        }
        let chain = chain::walk(memory, &self.table, head, segments)?;
        self.set_held(head, true);
        self.next_avail = position.wrapping_add(1);
        self.keep_event_ahead(memory)?;
        Ok(Some((Taken { id: head, position, descriptors: 1 }, chain)))
    }

    /// Limits the descriptors of later chains.
    pub(super) fn limit_chains(&mut self, most: u16) {
        self.table.longest = most.min(self.table.size);
    }

    /// Where its chains' descriptors are.
    pub(super) const fn table(&self) -> &Table {
        &self.table
    }

    /// Takes the next request, whose chain begins at `head` and is not held yet. Call [`Split::were_held`] after the last of
    /// several.
    #[inline(always)]
    pub(super) fn hold(&mut self, head: u16) -> Taken {
        self.set_held(head, true);
        let position = self.next_avail;
        self.next_avail = position.wrapping_add(1);
        Taken { id: head, position, descriptors: 1 }
    }

    /// Ends a sequence of [`Split::hold`] calls.
    #[inline(always)]
    pub(super) fn were_held(&mut self, memory: &GuestMemory) {
        // This cannot fail, as in `advance`.
        let _ = self.keep_event_ahead(memory);
    }

    pub(super) fn rewind(&mut self, taken: &Taken) -> bool {
        if taken.position.wrapping_add(1) != self.next_avail || !self.holds(taken.id) {
            return false;
        }
        self.set_held(taken.id, false);
        self.next_avail = taken.position;
        true
    }

    /// Notes in the set of chains that the device holds that it holds the one at `head` no more. Returns whether it did.
    #[inline(always)]
    pub(super) fn release(outstanding: &mut [u64; WORDS], head: u16) -> bool {
        let Some(word) = outstanding.get_mut(usize::from(head / 64)) else { return false };
        let (before, bit) = (*word, 1 << (head % 64));
        *word = before & !bit;
        before & bit != 0
    }

    #[inline]
    pub(super) fn complete(&mut self, memory: &GuestMemory, taken: &Taken, written: u32) -> Result<bool, Fault> {
        if !Self::release(&mut self.outstanding, taken.id) {
            return Ok(false);
        }
        if let Some((_, _, used)) = self.rings {
            used.set(self.next_used, [u32::from(taken.id), written]);
        } else {
            let at = self.used.wrapping_add(4).wrapping_add(8 * u64::from(self.slot(self.next_used)));
            memory.write_u32(at, u32::from(taken.id)).map_err(|_| Fault::RingAddress)?;
            memory.write_u32(at.wrapping_add(4), written).map_err(|_| Fault::RingAddress)?;
        }
        self.next_used = self.next_used.wrapping_add(1);
        Ok(true)
    }

    /// Publishes all completions with one store of the used index.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published_used != self.next_used {
            // Release: a driver that sees the index sees the entries and the buffers' contents.
            self.words.used_index.store_release(self.next_used);
            self.published_used = self.next_used;
        }
    }

    /// Returns whether the driver wants an interrupt. The driver writes `used_event` or the flags, then reads the used
    /// index. The device writes the used index, then reads `used_event` or the flags. With a full barrier on both sides
    /// at least one sees the other (2.7.7.2).
    #[inline]
    pub(super) fn used_notification(&mut self, _: &GuestMemory) -> Result<UsedNotification, Fault> {
        let (old, new) = (self.notified_used, self.published_used);
        if old == new {
            return Ok(UsedNotification::Nothing);
        }
        self.notified_used = new;
        let wanted = if self.event_idx {
            need_event(self.words.used_event.load(), new, old)
        } else {
            self.words.avail_flags.load() & AVAIL_F_NO_INTERRUPT == 0
        };
        Ok(if wanted { UsedNotification::Wanted } else { UsedNotification::Suppressed })
    }

    /// The used index that the driver can see.
    #[inline]
    pub(super) const fn published(&self) -> u16 {
        self.published_used
    }

    /// As [`super::Queue::distance`].
    #[inline]
    pub(super) const fn distance(&self, from: u16, to: u16) -> u16 {
        to.wrapping_sub(from)
    }

    /// As [`super::Queue::has_passed`].
    #[inline]
    pub(super) const fn has_passed(&self, position: u16, mark: u16) -> bool {
        position.wrapping_sub(mark) < 0x8000
    }

    /// As [`super::Queue::driver_word`].
    #[inline]
    pub(super) fn driver_word(&self, _: &GuestMemory) -> u32 {
        if self.event_idx {
            self.words.used_event.load().into()
        } else {
            u32::from(self.words.avail_flags.load() & AVAIL_F_NO_INTERRUPT)
        }
    }

    /// As [`super::Queue::is_past`].
    #[inline]
    pub(super) const fn is_past(&self, word: u32, mark: u16) -> bool {
        self.event_idx && self.has_passed(word as u16, mark)
    }

    /// As [`super::Queue::is_taken`].
    #[inline]
    pub(super) fn is_taken(&self, memory: &GuestMemory, mark: u16, word: u32) -> bool {
        let now = self.driver_word(memory);
        // The driver offers no more than a queue, so it has taken what is a queue behind.
        (now != word && (!self.event_idx || self.is_past(now, mark)))
            || self.has_passed(self.words.avail_index.load().wrapping_sub(self.table.size), mark)
    }

    pub(super) fn arm(&mut self, memory: &GuestMemory) -> Result<u16, Fault> {
        self.armed = true;
        if self.event_idx {
            // The driver notifies when it fills this very position.
            self.write_avail_event(memory, self.known_avail)?;
        } else {
            memory.write_u16(self.used, 0).map_err(|_| Fault::RingAddress)?;
        }
        // As for `used_notification`, with the roles exchanged.
        fence(Ordering::SeqCst);
        self.read_available()
    }

    pub(super) fn disarm(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        self.armed = false;
        if self.event_idx {
            // Flags must be 0 with EVENT_IDX (2.7.10).
            memory.write_u16(self.used, 0).map_err(|_| Fault::RingAddress)?;
            self.write_avail_event(memory, self.next_avail.wrapping_add(EVENT_AHEAD))
        } else {
            memory.write_u16(self.used, USED_F_NO_NOTIFY).map_err(|_| Fault::RingAddress)
        }
    }

    /// Takes and completes the next `count` requests. Their used entries are written already.
    #[inline(always)]
    pub(super) fn advance(&mut self, memory: &GuestMemory, count: u16) {
        self.next_avail = self.next_avail.wrapping_add(count);
        self.next_used = self.next_used.wrapping_add(count);
        // This cannot fail: the batch has found the used ring in guest memory.
        let _ = self.keep_event_ahead(memory);
    }

    /// Moves `avail_event` on before the driver reaches it.
    #[inline]
    fn keep_event_ahead(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        if self.event_idx && !self.armed && self.avail_event.wrapping_sub(self.next_avail) < EVENT_REFRESH {
            return self.write_avail_event(memory, self.next_avail.wrapping_add(EVENT_AHEAD));
        }
        Ok(())
    }

    fn write_avail_event(&mut self, memory: &GuestMemory, event: u16) -> Result<(), Fault> {
        self.avail_event = event;
        let at = self.used.wrapping_add(4).wrapping_add(8 * u64::from(self.table.size));
        memory.write_u16(at, event).map_err(|_| Fault::RingAddress)
    }

    /// Whether the device holds the chain at `head`.
    #[inline]
    pub(super) fn holds(&self, head: u16) -> bool {
        self.outstanding.get(usize::from(head / 64)).is_some_and(|w| w & 1 << (head % 64) != 0)
    }

    fn set_held(&mut self, head: u16, held: bool) {
        if let Some(word) = self.outstanding.get_mut(usize::from(head / 64)) {
            let bit = 1 << (head % 64);
            if held { *word |= bit } else { *word &= !bit }
        }
    }
}

/// Whether the step from `old` to `new` passes `event` (virtio 1.3 2.7.7.1, 2.7.10.1).
const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
