//! An I/O queue pair, owned by one engine: its commands and requests.
//!
//! A request becomes one command or several. Commands are the entries of `slots`, requests those of `requests`. Both
//! tables have a place for each command that the submission queue holds.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::bounce::{Bounce, NONE};
use crate::command::Command;
use crate::config::Config;
use crate::dma::{Dma, DmaBuffer};
use crate::gate::{Gate, Order, Ticket, Trouble};
use crate::identify::Format;
use crate::registers::Registers;
use crate::request::{Limits, Status};
use crate::ring::Ring;
use crate::table::{DEALLOCATE, Table, WRITE_ZEROES};

/// Bits of a command identifier that are the slot. The others count the uses of the slot, so that a completion for an
/// earlier use is known as such.
const SLOT_BITS: u32 = 10;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// Step of the count in a command identifier.
const USE: u16 = 1 << SLOT_BITS;

/// The end of the list of free slots. Beyond all slots, and such that [`State::ALONE`] is a short constant.
pub(crate) const END: u16 = 0x7fff;
/// The request of a command that has one of its own.
pub(crate) const ALONE: u16 = u16::MAX;

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// The device has it. It is all of its request, and has no bounce pages.
    DeviceAlone,
    /// The device has it.
    Device,
    /// It waits to be given to the device again.
    Waiting,
    /// The slot is free, or its command is being prepared.
    Nowhere,
}

/// Why a command is to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// It is not.
    No,
    /// Its time is over.
    TimedOut,
    /// Its request was cancelled.
    Cancelled,
}

/// What a command has been through.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct State {
    /// Its request: an index of `requests`, or [`ALONE`].
    pub request: u16,
    /// The next free slot. It means something only in a free slot.
    pub next: u16,
    pub place: Place,
    pub ending: Ending,
    /// The controller was not asked to abort it yet.
    pub abort_wanted: bool,
    /// How often it was given to the device again.
    pub retries: u8,
}

impl State {
    /// Of a command that the device has, and that is all of a request.
    pub(crate) const ALONE: Self = Self::new(ALONE, Place::DeviceAlone, END);

    /// Of a command that was just given to the device, or is to be given to it.
    pub(crate) const fn new(request: u16, place: Place, next: u16) -> Self {
        Self { request, place, ending: Ending::No, abort_wanted: false, retries: 0, next }
    }

    /// Whether the device has it.
    #[inline(always)]
    pub(crate) const fn is_at_device(&self) -> bool {
        matches!(self.place, Place::Device | Place::DeviceAlone)
    }
}

/// A command. It fills a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    /// With its identifier. In a free slot it is empty, and has the identifier of the slot's next command.
    pub command: Command,
    /// When it was given to the device, or when its time was over.
    pub since: u64,
    pub state: State,
    /// Its bounce pages. None in a free slot.
    pub bounce: u32,
    /// Identifier of its request, if that is [`ALONE`].
    pub id: u32,
}

const _: () = assert!(size_of::<Slot>() == 64, "one cache line");

impl Slot {
    /// Whether the device has the command, all of a request and without bounce pages, under this identifier.
    #[inline(always)]
    pub(crate) const fn is_alone(&self, cid: u16) -> bool {
        matches!(self.state.place, Place::DeviceAlone) && self.command.cid() == cid
    }
}

/// A request that was taken and not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub id: u32,
    /// Commands that are not completed. 0: the place is free.
    pub left: u16,
    /// The first error of its commands.
    pub status: Status,
}

/// A namespace, as the requests since the last [`IoQueue::notify`] need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    /// Its identifier. 0: none.
    pub namespace: u32,
    /// log2 of the bytes of a block.
    pub shift: u32,
    /// The identifier in bits 63:32.
    pub head: u64,
    /// Number of blocks. 0 if there is no namespace.
    pub blocks: u64,
    /// Blocks of a page, and how many blocks begin so many that are all within. 0 if there is no namespace.
    pub page_blocks: u32,
    pub page_firsts: u64,
}

impl Prepared {
    pub(crate) const NONE: Self = Self { namespace: 0, shift: 0, head: 0, blocks: 0, page_blocks: 0, page_firsts: 0 };

    /// Forgets the namespace: nothing is a request to it any more.
    #[inline(always)]
    pub(crate) const fn forget(&mut self) {
        (self.namespace, self.blocks, self.page_blocks) = (0, 0, 0);
    }
}

/// An I/O queue pair. One engine owns it: it submits and polls, and reads no register.
pub struct IoQueue<R, D> {
    pub(crate) ring: Ring,
    pub(crate) registers: R,
    pub(crate) dma: D,
    pub(crate) gate: Arc<Gate>,
    pub(crate) table: Arc<Table>,
    pub(crate) config: Config,
    /// PRP lists, `config.list_pages` for each slot.
    pub(crate) lists: DmaBuffer,
    pub(crate) bounce: Bounce,
    pub(crate) slots: Box<[Slot]>,
    /// The first free slot, or [`END`].
    pub(crate) free: u16,
    /// Commands that have ended, and those that were given to the device again. They and [`Ring::pushed`] say how many
    /// slots are in use. Both wrap.
    pub(crate) ended: u32,
    /// The namespace of the last request. Only while the queue is open.
    pub(crate) prepared: Prepared,
    pub(crate) requests: Box<[Pending]>,
    pub(crate) free_requests: Vec<u16>,
    /// Commands of requests that have a place in `requests`.
    pub(crate) shared_slots: u32,
    /// Answers that the next poll gives.
    pub(crate) finished: VecDeque<(u32, Status)>,
    /// The last order.
    pub(crate) ticket: Ticket,
    /// The last order is not carried out yet.
    pub(crate) pending_order: bool,
    /// It has reported the device. It touches nothing until the reset.
    pub(crate) broken: bool,
    /// Some command waits to be given to the device again.
    pub(crate) waiting: bool,
    /// When commands are next looked at.
    pub(crate) next_check: u64,
}

/// The memory of a queue.
pub(crate) struct QueueMemory {
    pub submission: DmaBuffer,
    pub completion: DmaBuffer,
    pub lists: DmaBuffer,
    pub bounce: DmaBuffer,
}

impl<R: Registers, D: Dma> IoQueue<R, D> {
    /// Makes the queue pair `id` (1 or more) of `depth` entries. `None`: the memory has no room for them.
    pub(crate) fn new(
        (id, depth): (u16, u16),
        registers: R,
        dma: D,
        memory: QueueMemory,
        (gate, table): (Arc<Gate>, Arc<Table>),
        config: Config,
    ) -> Option<Self> {
        let count = depth.saturating_sub(1);
        let next = |index: u16| Some(index.saturating_add(1)).filter(|next| *next < count).unwrap_or(END);
        let slot = |index: u16| Slot {
            command: Command::empty(next_use(index)),
            since: 0,
            state: State::new(ALONE, Place::Nowhere, next(index)),
            bounce: NONE,
            id: 0,
        };
        // A piece ends with its segment or with its page.
        let pieces = (config.max_segments as usize).saturating_add(config.bounce_pages());
        Some(Self {
            ring: Ring::new(id, depth, memory.submission, memory.completion)?,
            registers,
            dma,
            gate,
            table,
            config,
            lists: memory.lists,
            bounce: Bounce::new(memory.bounce, pieces),
            slots: (0..count).map(slot).collect(),
            free: 0,
            ended: 0,
            prepared: Prepared::NONE,
            requests: vec![Pending { id: 0, left: 0, status: Status::Ok }; usize::from(count)].into_boxed_slice(),
            free_requests: (0..count).rev().collect(),
            shared_slots: 0,
            finished: VecDeque::with_capacity(2 * usize::from(count)),
            ticket: Ticket::FIRST,
            pending_order: false,
            broken: false,
            waiting: false,
            next_check: 0,
        })
    }

    /// Its number, from 1 on.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.ring.id()
    }

    /// Requests that were taken and not answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        // Each number is part of the one before it. If that were wrong, the sum would not be 0, and the queue be polled.
        let alone = self.used_slots().wrapping_sub(self.shared_slots) as usize;
        let shared = self.requests.len().wrapping_sub(self.free_requests.len());
        alone.wrapping_add(shared).wrapping_add(self.finished.len())
    }

    /// Slots that are not free.
    #[inline(always)]
    pub(crate) const fn used_slots(&self) -> u32 {
        self.ring.pushed().wrapping_sub(self.ended)
    }

    /// Whether the controller has given an order that the queue has not carried out, or answers wait. Then
    /// [`IoQueue::poll`] has to be called, even if no request is outstanding.
    #[must_use]
    #[inline(always)]
    pub fn wants_poll(&self) -> bool {
        self.pending_order || self.gate.ticket() != self.ticket || !self.finished.is_empty()
    }

    /// Bounce pages that are free. Not for the data path.
    #[must_use]
    pub fn free_bounce_pages(&self) -> usize {
        self.bounce.free()
    }

    /// Whether requests are taken now.
    #[must_use]
    #[inline(always)]
    pub const fn is_open(&self) -> bool {
        matches!(self.ticket.order(), Order::Open) && !self.broken
    }

    /// Whether no request will be taken any more, unless the controller is started again.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.ticket.order(), Order::Close)
    }

    /// The block size (as log2) and the number of blocks of a namespace, as they are now, without identifiers. `None`: there is no such
    /// namespace, or it cannot be used.
    #[must_use]
    pub fn namespace(&self, namespace: u32) -> Option<Format> {
        let known = self.table.get(namespace)?;
        Some(Format {
            shift: known.shift,
            blocks: known.blocks,
            read_only: known.read_only,
            unique: None,
            eui64: None,
            shared: false,
        })
    }

    /// Grows when a namespace may have changed. It costs one read of memory.
    #[must_use]
    #[inline(always)]
    pub fn namespace_changes(&self) -> u32 {
        self.table.changes()
    }

    /// Limits of a request to a namespace.
    #[must_use]
    pub fn limits(&self, namespace: u32) -> Option<Limits> {
        let shift = self.table.get(namespace)?.shift;
        let most = self.blocks_of_command(shift).saturating_mul(Config::most_commands(self.ring.entries()));
        Some(Limits {
            data_blocks: most.min(self.config.max_bytes >> shift),
            zero_blocks: if self.table.has(WRITE_ZEROES) { most } else { 0 },
            deallocate_blocks: if self.table.has(DEALLOCATE) { u32::MAX } else { 0 },
            segments: self.config.max_segments,
        })
    }

    /// Most blocks of a command. `shift`: log2 of the bytes of a block.
    #[inline(always)]
    pub(crate) fn blocks_of_command(&self, shift: u32) -> u32 {
        (self.table.transfer() >> shift).min(1 << 16)
    }

    /// Takes a free slot.
    #[inline(always)]
    pub(crate) fn take_slot(&mut self) -> Option<(u16, &mut Slot)> {
        let index = self.free;
        let slot = self.slots.get_mut(usize::from(index))?;
        self.free = slot.state.next;
        Some((index, slot))
    }

    /// Frees a slot.
    pub(crate) fn put_back(&mut self, index: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.command.make_empty(next_use(slot.command.cid()));
            (slot.state.place, slot.state.next) = (Place::Nowhere, self.free);
            self.free = index;
            self.ended = self.ended.wrapping_add(1);
        }
    }

    /// The slot of the command that the device has under an identifier.
    #[inline(always)]
    pub(crate) fn find(&self, cid: u16) -> Option<u16> {
        let index = slot_of(cid);
        let slot = self.slots.get(usize::from(index))?;
        (slot.state.is_at_device() && slot.command.cid() == cid).then_some(index)
    }

    /// Gives the command of a slot to the device, under its identifier.
    pub(crate) fn issue(&mut self, index: u16, now: u64) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        let is_alone = slot.state.request == ALONE && slot.bounce == NONE;
        slot.state.place = if is_alone { Place::DeviceAlone } else { Place::Device };
        slot.since = now;
        self.ring.push(&slot.command);
    }

    /// Reports the device, and touches nothing of it any more.
    #[cold]
    pub(crate) fn give_up(&mut self, trouble: Trouble) {
        self.broken = true;
        self.prepared.forget();
        self.gate.report(trouble);
    }
}

/// The slot of an identifier. The table may have fewer slots.
#[inline(always)]
pub(crate) const fn slot_of(cid: u16) -> u16 {
    cid & SLOT_MASK
}

/// The identifier of the next command of a slot.
#[inline(always)]
pub(crate) const fn next_use(cid: u16) -> u16 {
    cid.wrapping_add(USE)
}
