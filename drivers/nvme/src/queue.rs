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

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The slot is free.
    Nowhere,
    /// The device has it.
    Device,
    /// It waits to be given to the device again.
    Waiting,
}

/// Why a command is to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is not.
    No,
    /// Its time is over.
    TimedOut,
    /// Its request was cancelled.
    Cancelled,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub place: Place,
    /// The device writes to memory.
    pub reads: bool,
    pub ending: Ending,
    /// The controller was not asked to abort it yet.
    pub abort_wanted: bool,
    /// Uses of the slot.
    pub uses: u16,
    /// How often it was given to the device again.
    pub retries: u8,
    /// Its request.
    pub request: u16,
    /// Its bounce pages.
    pub bounce: u32,
    pub deadline: u64,
    pub command: Command,
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
    pub(crate) free: Vec<u16>,
    pub(crate) requests: Box<[Pending]>,
    pub(crate) free_requests: Vec<u16>,
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
    /// Makes the queue pair `id` (1 or more) of `depth` entries.
    pub(crate) fn new(
        (id, depth): (u16, u16),
        registers: R,
        dma: D,
        memory: QueueMemory,
        (gate, table): (Arc<Gate>, Arc<Table>),
        config: Config,
    ) -> Self {
        let count = depth - 1;
        let slot = Slot {
            place: Place::Nowhere,
            reads: false,
            ending: Ending::No,
            abort_wanted: false,
            uses: 0,
            retries: 0,
            request: 0,
            bounce: NONE,
            deadline: 0,
            command: Command::default(),
        };
        // A piece ends with its segment or with its page.
        let pieces = config.max_segments as usize + config.bounce_pages();
        Self {
            ring: Ring::new(id, depth, memory.submission, memory.completion),
            registers,
            dma,
            gate,
            table,
            config,
            lists: memory.lists,
            bounce: Bounce::new(memory.bounce, pieces),
            slots: vec![slot; usize::from(count)].into_boxed_slice(),
            free: (0..count).rev().collect(),
            requests: vec![Pending { id: 0, left: 0, status: Status::Ok }; usize::from(count)].into_boxed_slice(),
            free_requests: (0..count).rev().collect(),
            finished: VecDeque::with_capacity(2 * usize::from(count)),
            ticket: Ticket::FIRST,
            pending_order: false,
            broken: false,
            waiting: false,
            next_check: 0,
        }
    }

    /// Its number, from 1 on.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.ring.id()
    }

    /// Requests that were taken and not answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.requests.len() - self.free_requests.len() + self.finished.len()
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

    /// The identifier of the command in a slot.
    #[inline(always)]
    pub(crate) const fn cid(slot: u16, uses: u16) -> u16 {
        slot | uses << SLOT_BITS
    }

    /// The slot of the command that the device has under an identifier.
    #[inline(always)]
    pub(crate) fn find(&self, cid: u16) -> Option<u16> {
        let index = cid & SLOT_MASK;
        let slot = self.slots.get(usize::from(index))?;
        (slot.place == Place::Device && Self::cid(index, slot.uses) == cid).then_some(index)
    }

    /// Gives the command of a slot to the device, under a new identifier.
    #[inline(always)]
    pub(crate) fn issue(&mut self, index: u16, now: u64) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        slot.uses = slot.uses.wrapping_add(1);
        slot.place = Place::Device;
        slot.deadline = now.saturating_add(self.config.command_time);
        self.ring.push(&slot.command.words(Self::cid(index, slot.uses)));
    }

    /// Reports the device, and touches nothing of it any more.
    pub(crate) fn give_up(&mut self, trouble: Trouble) {
        self.broken = true;
        self.gate.report(trouble);
    }
}
