//! The device's side of a split virtqueue (virtio 1.3 ch. 2.7).
//!
//! Every index is the queue's own: of the guest's memory only the available index, ring entries, descriptors and
//! `used_event` are read, each once and then checked. Nothing that the host wrote there is ever read back.
//!
//! While the engine polls a queue, its driver is asked not to notify: by NO_NOTIFY, or with EVENT_IDX by an `avail_event`
//! that is kept half of the index space ahead, where no driver gets before it is moved on.

#![allow(unsafe_code, reason = "the rings are kept as they are found in the host's memory")]

use core::sync::atomic::{Ordering, fence};

use memory::GuestMemory;
use memory::span::Slots;

mod run;

pub(crate) use run::{First, Look, Run, UsedRow};

use crate::chain::{self, Chain, DESCRIPTOR_BYTES, Segments, Table};
use crate::fault::Fault;
use crate::schedule::Glance;
use crate::shared::{Features, MAX_QUEUE_SIZE, QueueConfig};

const USED_F_NO_NOTIFY: u16 = 1;
const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// How far ahead `avail_event` is put, and how near it may come before it is moved on. The driver is never more than a
/// queue ahead of us, which is less than the latter.
const EVENT_AHEAD: u16 = 0x8000;
const EVENT_REFRESH: u16 = 0x4000;
const _: () = assert!(MAX_QUEUE_SIZE < EVENT_REFRESH);

const WORDS: usize = MAX_QUEUE_SIZE as usize / 64;

/// The right to complete one request, once. It is neither copied nor cloned; one that outlives a reset of its device
/// is stale and completes nothing.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request that is never completed stays with the device"]
pub struct Token {
    pub(crate) queue: u16,
    pub(crate) generation: u32,
    head: u16,
    /// Where in the available ring it stood.
    position: u16,
}

impl Token {
    /// The queue it came from.
    #[must_use]
    pub const fn queue(&self) -> u16 {
        self.queue
    }
}

/// A request taken from a queue: a token and the chain's buffers in the [`Segments`] it was taken into.
#[derive(Debug)]
pub struct Request {
    /// To complete it with.
    pub token: Token,
    /// Its buffers.
    pub chain: Chain,
}

/// What publishing the used ring asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// There was nothing to publish.
    Nothing,
    /// The driver wants no interrupt.
    Quiet,
    /// The driver wants an interrupt.
    Interrupt,
}

/// A queue that holds no request, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// As the driver configured it.
    pub config: QueueConfig,
    /// The next position in the available ring.
    pub avail: u16,
    /// The next position in the used ring.
    pub used: u16,
}

/// A queue's rings as they are found in the host's memory. None if they cannot be used by runs there.
type Rings = (Slots<'static, u16>, Slots<'static, [u64; 2]>, Slots<'static, [u32; 2]>);

/// A queue in use.
pub struct Queue {
    table: Table,
    rings: Option<Rings>,
    avail: u64,
    used: u64,
    event_idx: bool,
    index: u16,
    generation: u32,
    /// Next position of the available ring to take.
    next_avail: u16,
    /// The available index as last read and checked.
    known_avail: u16,
    /// Next position of the used ring to fill.
    next_used: u16,
    /// The used index as the driver can see it.
    published_used: u16,
    /// The `avail_event` that stands in the guest's memory.
    avail_event: u16,
    armed: bool,
    /// The region of the guest's memory that held the buffer looked at last.
    region: u8,
    in_flight: u16,
    outstanding: [u64; WORDS],
}

impl Queue {
    /// Takes a queue into use as the driver configured it, from position `state.avail` and `state.used` on, with
    /// notifications off.
    ///
    /// # Errors
    /// Size or addresses break the rules.
    ///
    /// # Safety
    /// `memory`, or a clone of it, must live as long as the queue.
    pub unsafe fn new(
        memory: &GuestMemory,
        index: u16,
        generation: u32,
        features: Features,
        max_size: u16,
        state: &QueueState,
    ) -> Result<Self, Fault> {
        let QueueConfig { size, desc, avail, used, .. } = state.config;
        if !size.is_power_of_two() || size > max_size.min(MAX_QUEUE_SIZE) {
            return Err(Fault::QueueSize);
        }
        let n = u64::from(size);
        // Both rings end in a word for EVENT_IDX, which is there whether it is used or not (2.7.1).
        for (at, bytes, align) in [(desc, DESCRIPTOR_BYTES * n, 16), (avail, 6 + 2 * n, 2), (used, 6 + 8 * n, 4)] {
            if !at.is_multiple_of(align) || memory.translate(at, bytes).is_err() {
                return Err(Fault::RingAddress);
            }
        }
        let rings = match (memory.slots(avail + 4, size), memory.slots(desc, size), memory.slots(used + 4, size)) {
            // SAFETY: they are used for as long as the queue lives, and so does the memory, as the caller says.
            (Some(avail), Some(desc), Some(used)) => unsafe { Some((avail.kept(), desc.kept(), used.kept())) },
            _ => None,
        };
        let mut queue = Self {
            rings,
            table: Table { desc, size, indirect: features.contains(Features::INDIRECT_DESC) },
            avail,
            used,
            event_idx: features.contains(Features::EVENT_IDX),
            index,
            generation,
            next_avail: state.avail,
            known_avail: state.avail,
            next_used: state.used,
            published_used: state.used,
            avail_event: 0,
            armed: false,
            region: 0,
            in_flight: 0,
            outstanding: [0; WORDS],
        };
        queue.disarm(memory)?;
        Ok(queue)
    }

    /// Its positions in the available and the used ring, to go on from later. None while a request is out or a
    /// completion is not yet published.
    #[must_use]
    pub fn positions(&self) -> Option<(u16, u16)> {
        (self.in_flight == 0 && self.next_used == self.published_used).then_some((self.next_avail, self.next_used))
    }

    /// Requests taken and not yet completed.
    #[must_use]
    pub const fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// How many requests can be taken. The guest's index is only read again when those known of are used up.
    ///
    /// # Errors
    /// The index moved back or more than a queue ahead.
    #[inline]
    pub fn available(&mut self, memory: &GuestMemory) -> Result<u16, Fault> {
        let known = self.known_avail.wrapping_sub(self.next_avail);
        if known == 0 { self.look(memory) } else { Ok(known) }
    }

    /// The available index, and how far it is ahead of what was taken. Nothing is believed and nothing changes: the
    /// next visit reads it anew.
    #[must_use]
    #[inline]
    pub fn glance(&self, memory: &GuestMemory) -> Option<Glance> {
        let index = memory.read_u16(self.avail + 2).ok()?;
        Some(Glance { index, waiting: index.wrapping_sub(self.next_avail) })
    }

    /// Reads the available index. Acquire: the entries and descriptors read afterwards are those it was published with.
    fn look(&mut self, memory: &GuestMemory) -> Result<u16, Fault> {
        let index = memory.load_acquire_u16(self.avail + 2).map_err(|_| Fault::RingAddress)?;
        let known = self.known_avail.wrapping_sub(self.next_avail);
        let new = index.wrapping_sub(self.known_avail);
        // A step back looks like nearly 65,536 ahead.
        if u32::from(known) + u32::from(new) > u32::from(self.table.size) {
            return Err(Fault::AvailIndex);
        }
        self.known_avail = index;
        Ok(known + new)
    }

    /// Takes the next request, its buffers appended to `segments`, which must have room for a chain. None: there is
    /// none.
    ///
    /// # Errors
    /// The guest broke a rule; the queue must not be used any more.
    #[inline]
    pub fn pop(&mut self, memory: &GuestMemory, segments: &mut Segments) -> Result<Option<Request>, Fault> {
        if self.available(memory)? == 0 {
            return Ok(None);
        }
        let position = self.next_avail;
        let slot = u64::from(position & (self.table.size - 1));
        let head = memory.read_u16(self.avail + 4 + 2 * slot).map_err(|_| Fault::RingAddress)?;
        if head >= self.table.size {
            return Err(Fault::Head);
        }
        if self.holds(head) {
            return Err(Fault::HeadOutstanding);
        }
        let chain = chain::walk(memory, &self.table, head, segments)?;
        self.set_held(head, true);
        self.in_flight += 1;
        self.next_avail = position.wrapping_add(1);
        self.keep_event_ahead(memory)?;
        let token = Token { queue: self.index, generation: self.generation, head, position };
        Ok(Some(Request { token, chain }))
    }

    /// Gives back the request taken last, as if it had not been taken; several are given back in reverse order. False,
    /// and no effect, if the token is stale or another was taken after it.
    pub fn rewind(&mut self, token: Token) -> bool {
        let last = token.position.wrapping_add(1) == self.next_avail;
        if !last || token.generation != self.generation || !self.holds(token.head) {
            return false;
        }
        self.set_held(token.head, false);
        self.in_flight -= 1;
        self.next_avail = token.position;
        true
    }

    /// Completes a request of which the device wrote `written` bytes, in any order. The driver sees it after
    /// [`Queue::publish`]. False, and no effect, if the token is stale.
    ///
    /// # Errors
    /// The used ring is not in the guest's memory (it was when the queue was set up).
    #[inline]
    pub fn complete(&mut self, memory: &GuestMemory, token: Token, written: u32) -> Result<bool, Fault> {
        if token.generation != self.generation || !self.holds(token.head) {
            return Ok(false);
        }
        self.set_held(token.head, false);
        self.in_flight -= 1;
        let at = self.used + 4 + 8 * u64::from(self.next_used & (self.table.size - 1));
        memory.write_u32(at, u32::from(token.head)).map_err(|_| Fault::RingAddress)?;
        memory.write_u32(at + 4, written).map_err(|_| Fault::RingAddress)?;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(true)
    }

    /// Shows the driver what was completed since the last time, by one store, and says whether it wants an interrupt.
    ///
    /// # Errors
    /// The rings are not in the guest's memory (they were when the queue was set up).
    pub fn publish(&mut self, memory: &GuestMemory) -> Result<Published, Fault> {
        let (old, new) = (self.published_used, self.next_used);
        if old == new {
            return Ok(Published::Nothing);
        }
        // Release: whoever sees the index sees the entries and the buffers' contents.
        memory.store_release_u16(self.used + 2, new).map_err(|_| Fault::RingAddress)?;
        self.published_used = new;
        // The driver sets its wish, then looks at the used index; we set the index, then look at its wish. With a full
        // barrier on both sides one of the two sees the other (2.7.7.2).
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let used_event = self.avail + 4 + 2 * u64::from(self.table.size);
            let event = memory.read_u16(used_event).map_err(|_| Fault::RingAddress)?;
            need_event(event, new, old)
        } else {
            memory.read_u16(self.avail).map_err(|_| Fault::RingAddress)? & AVAIL_F_NO_INTERRUPT == 0
        };
        Ok(if wanted { Published::Interrupt } else { Published::Quiet })
    }

    /// Asks the driver to notify from its next request on, and then looks again: how many requests came in the
    /// meantime. Only if none did may the caller wait for a notification.
    ///
    /// # Errors
    /// As for [`Queue::available`].
    pub fn arm(&mut self, memory: &GuestMemory) -> Result<u16, Fault> {
        self.armed = true;
        if self.event_idx {
            // The driver notifies when it fills this very position.
            self.write_avail_event(memory, self.known_avail)?;
        } else {
            memory.write_u16(self.used, 0).map_err(|_| Fault::RingAddress)?;
        }
        // As in `publish`, with the roles exchanged.
        fence(Ordering::SeqCst);
        self.look(memory)
    }

    /// Asks the driver not to notify.
    ///
    /// # Errors
    /// The used ring is not in the guest's memory (it was when the queue was set up).
    pub fn disarm(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        self.armed = false;
        if self.event_idx {
            // Flags must be 0 with EVENT_IDX (2.7.10).
            memory.write_u16(self.used, 0).map_err(|_| Fault::RingAddress)?;
            self.write_avail_event(memory, self.next_avail.wrapping_add(EVENT_AHEAD))
        } else {
            memory.write_u16(self.used, USED_F_NO_NOTIFY).map_err(|_| Fault::RingAddress)
        }
    }

    /// Moves `avail_event` on before a driver that is not to notify gets there.
    #[inline]
    fn keep_event_ahead(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        if self.event_idx && !self.armed && self.avail_event.wrapping_sub(self.next_avail) < EVENT_REFRESH {
            return self.write_avail_event(memory, self.next_avail.wrapping_add(EVENT_AHEAD));
        }
        Ok(())
    }

    fn write_avail_event(&mut self, memory: &GuestMemory, event: u16) -> Result<(), Fault> {
        self.avail_event = event;
        let at = self.used + 4 + 8 * u64::from(self.table.size);
        memory.write_u16(at, event).map_err(|_| Fault::RingAddress)
    }

    #[inline]
    fn holds(&self, head: u16) -> bool {
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
