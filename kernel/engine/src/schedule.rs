//! Which queue is visited next, and for how long: the one place for it.
//!
//! The engine says which queues are to be visited at all ([`Schedule::enter`], [`Schedule::leave`]). A turn asks for
//! [`Schedule::next`] until there is none, and after each portion of a visit for more of it ([`Schedule::go_on`]).
//! [`Fine`] is what an engine with several guests wants; [`PerDevice`] is the baseline that ELVIS (3.1, 4.6) measures
//! against.

mod fine;
mod per_device;

pub use fine::{Fine, Limits};
pub use per_device::PerDevice;

use crate::backend::MAX_PORTS;
use crate::config::MAX_QUEUES;

/// Queues of an engine at most.
pub const QUEUES: usize = MAX_PORTS * MAX_QUEUES;

/// A queue of an engine: its port, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueId(u16);

impl QueueId {
    /// Queue number `queue` at `port`.
    #[must_use]
    pub const fn new(port: usize, queue: u16) -> Self {
        Self((port * MAX_QUEUES) as u16 + queue)
    }

    /// The port.
    #[must_use]
    pub const fn port(self) -> usize {
        self.0 as usize / MAX_QUEUES
    }

    /// The queue's number at its port.
    #[must_use]
    pub const fn queue(self) -> u16 {
        self.0 % MAX_QUEUES as u16
    }
}

/// Whose work a device's is, and how much of the engine that one may have when all want some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// A number for the guest, below [`MAX_PORTS`]; devices with the same number share its weight.
    pub guest: usize,
    /// Its weight: twice the weight, twice the time. 1 to [`MAX_WEIGHT`].
    pub weight: u16,
}

/// The greatest weight of a guest.
pub const MAX_WEIGHT: u16 = 16;

impl Share {
    /// With the weight that everybody has.
    #[must_use]
    pub const fn of_guest(guest: usize) -> Self {
        Self { guest, weight: 1 }
    }
}

/// How much a portion of a visit may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Requests at most.
    pub requests: u32,
    /// No further request is taken after so many bytes.
    pub bytes: u64,
}

/// What a portion came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests taken.
    pub requests: u32,
    /// Bytes of them.
    pub bytes: u64,
}

impl Served {
    /// Whether the queue was empty before the portion was used up.
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
    /// How much at first.
    pub portion: Portion,
}

/// What a look at a queue finds without touching it. If [`MANY`] requests wait or more, it need not know how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// The driver's available index: it moves when there is new work, if fewer than [`MANY`] wait.
    pub index: u16,
    /// Requests that wait.
    pub waiting: u16,
}

/// So many requests are not few, whatever the limits are.
pub const MANY: u16 = 32;

/// Decides the order of work.
pub trait Schedule {
    /// A queue is to be visited from now on. `announced`: its driver has notified, so there is work.
    fn enter(&mut self, queue: QueueId, share: Share, announced: bool);

    /// A queue is not to be visited any more. No effect on one that has not entered.
    fn leave(&mut self, queue: QueueId);

    /// The next visit of this turn, or None to end the turn. Of a queue of which `is_idle` says so a visit would find nothing, and
    /// change nothing: it may be left out.
    fn next(&mut self, is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit>;

    /// Whether a turn ends with the first visit that finds something.
    fn one_visit_a_turn(&self) -> bool;

    /// A portion of the visit that [`Schedule::next`] gave last has come to `served` in `spent` ticks, and it is `now`.
    /// The next portion, or None: the visit is over. `glance` looks at another queue.
    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        glance: impl FnMut(QueueId) -> Option<Glance>,
    ) -> Option<Portion>;
}

/// A schedule chosen at run time: one of these two.
#[allow(clippy::large_enum_variant, reason = "there is one in an engine, and no heap on its core")]
pub enum Chosen {
    /// All queues share the engine by time.
    Fine(Fine),
    /// One device after the other.
    PerDevice(PerDevice),
}

impl Schedule for Chosen {
    fn enter(&mut self, queue: QueueId, share: Share, announced: bool) {
        match self {
            Self::Fine(s) => s.enter(queue, share, announced),
            Self::PerDevice(s) => s.enter(queue, share, announced),
        }
    }

    fn leave(&mut self, queue: QueueId) {
        match self {
            Self::Fine(s) => s.leave(queue),
            Self::PerDevice(s) => s.leave(queue),
        }
    }

    #[inline]
    fn next(&mut self, is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit> {
        match self {
            Self::Fine(s) => s.next(is_idle),
            Self::PerDevice(s) => s.next(is_idle),
        }
    }

    #[inline]
    fn one_visit_a_turn(&self) -> bool {
        match self {
            Self::Fine(s) => s.one_visit_a_turn(),
            Self::PerDevice(s) => s.one_visit_a_turn(),
        }
    }

    #[inline]
    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        glance: impl FnMut(QueueId) -> Option<Glance>,
    ) -> Option<Portion> {
        match self {
            Self::Fine(s) => s.go_on(served, spent, now, glance),
            Self::PerDevice(s) => s.go_on(served, spent, now, glance),
        }
    }
}
