//! The contract between a schedule and the engine.
//!
//! The engine tells the schedule which queues to visit ([`Schedule::enter`], [`Schedule::leave`]). In a turn it calls
//! [`Schedule::next`] until that returns `None`. After each portion of a visit it asks for the next portion
//! ([`Schedule::go_on`]).

use virtio::config::MAX_QUEUES;
use virtio::queue::Backlog;

use crate::slots::MAX_SLOTS;

/// Queue numbers that a slot has, used or not. A power of two, so that a visit splits a [`QueueId`] by a shift and a mask.
const STRIDE: usize = MAX_QUEUES.next_power_of_two();

/// Queue numbers of an engine.
pub const QUEUES: usize = MAX_SLOTS * STRIDE;

/// A queue of an engine: its slot, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueId(pub(super) u16);

impl QueueId {
    /// Queue number `queue` at `slot`.
    #[must_use]
    pub const fn new(slot: usize, queue: u16) -> Self {
        Self((slot.wrapping_mul(STRIDE) as u16).wrapping_add(queue))
    }

    /// The slot.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.0 as usize / STRIDE
    }

    /// The queue's number at its slot.
    #[must_use]
    pub const fn queue(self) -> u16 {
        const QUEUES_OF_A_SLOT: u16 = STRIDE as u16;
        self.0 % QUEUES_OF_A_SLOT
    }

    /// Its number among all queues of the engine, below [`QUEUES`] if its slot is below [`MAX_SLOTS`].
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The guest that a device belongs to, and its weight: its share of the engine when all guests have work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestWeight {
    /// The guest's number, below [`MAX_SLOTS`]. Devices of one guest share its weight.
    pub guest: usize,
    /// The guest's weight, 1 to [`MAX_WEIGHT`]. Twice the weight is twice the time.
    pub weight: u16,
}

/// The largest weight of a guest.
pub const MAX_WEIGHT: u16 = 16;

impl GuestWeight {
    /// A guest with the default weight.
    #[must_use]
    pub const fn of_guest(guest: usize) -> Self {
        Self { guest, weight: 1 }
    }
}

/// The limits of one portion of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Most requests.
    pub requests: u32,
    /// Bytes after which no further request is taken, as in [`Served::bytes`].
    pub bytes: u64,
}

impl Portion {
    /// What is left of it after `taken`.
    #[must_use]
    #[inline]
    pub const fn after(&self, taken: &Served) -> Self {
        Self { requests: self.requests.saturating_sub(taken.requests), bytes: self.bytes.saturating_sub(taken.bytes) }
    }
}

/// What a portion took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests taken.
    pub requests: u32,
    /// Bytes of these requests. If requests have caused more work than their number and their bytes say, such as copies for
    /// many, the back-end says more bytes: [`INSTRUCTION_BYTES`] for each instruction. It is an estimate, so it ends
    /// portions and visits only. The engine's clock tells what is charged to a guest.
    pub bytes: u64,
}

/// Bytes that an instruction counts as. So a portion of 96 KiB ends after 24,576 instructions.
pub const INSTRUCTION_BYTES: u64 = 4;

impl Served {
    /// Requests and their bytes.
    #[must_use]
    #[inline]
    pub const fn new(requests: u32, bytes: u64) -> Self {
        Self { requests, bytes }
    }

    /// Adds what another portion took.
    #[inline]
    pub const fn add(&mut self, other: Self) {
        // No portion takes more than what the ones before it have left of the visit's requests.
        self.requests = self.requests.wrapping_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Whether the queue became empty before a limit of the portion.
    #[must_use]
    pub const fn emptied(&self, portion: &Portion) -> bool {
        self.requests < portion.requests && self.bytes < portion.bytes
    }
}

/// A visit to a queue, with its first portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Which queue.
    pub queue: QueueId,
    /// The first portion.
    pub portion: Portion,
}

/// Decides the order of visits.
pub trait Schedule {
    /// Adds a queue to the visited set. `announced`: its driver has notified, so it holds work.
    fn enter(&mut self, queue: QueueId, share: GuestWeight, announced: bool);

    /// Removes a queue from the visited set. No effect if it is not in it.
    fn leave(&mut self, queue: QueueId);

    /// Changes the weight of a guest. It counts from the guest's next turn in a round on.
    fn reweigh(&mut self, share: GuestWeight);

    /// Returns the next visit of this turn; `None` ends the turn. `is_idle` returns whether a visit to a queue would
    /// find nothing and change nothing. The schedule may skip such a queue.
    fn next(&mut self, is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit>;

    /// Whether a turn ends after the first visit that found something.
    fn one_visit_a_turn(&self) -> bool;

    /// Charges a queue for `ticks` after its visit: the time to publish what the visit completed, and to send the interrupts.
    fn charge(&mut self, queue: QueueId, ticks: u64);

    /// Handles the end of a portion of the current visit: it took `served` in `spent` ticks and ended at `now`. Returns
    /// the next portion; `None` ends the visit. `backlog` reads another queue's backlog.
    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        backlog: impl FnMut(QueueId) -> Option<Backlog>,
    ) -> Option<Portion>;
}
