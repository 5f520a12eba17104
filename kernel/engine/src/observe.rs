//! Where an engine can be observed: one place each for a turn, a visit and a completion.
//!
//! The loop is compiled once for each [`Observer`], and once for [`Unobserved`], which removes all observation code.
//! The engine chooses once a turn, by one test of [`Control::observe`](crate::control::Control::observe). So an
//! observer that is off adds nothing to a frame or to a visit.

use crate::schedule::QueueId;

/// A turn that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When it began, in ticks of the engine's clock.
    pub begin: u64,
    /// When it ended, in the same ticks.
    pub end: u64,
    /// Requests that it moved. 0: an idle turn.
    pub requests: u32,
}

/// A visit to a queue that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Which queue.
    pub queue: QueueId,
    /// When it began, in ticks of the engine's clock.
    pub begin: u64,
    /// When its last portion ended, in the same ticks.
    pub end: u64,
    /// Requests that it took.
    pub requests: u32,
    /// Bytes of these requests, as in [`Served`](crate::schedule::Served).
    pub bytes: u64,
}

/// Whether the driver was notified of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// An interrupt is sent.
    Interrupt,
    /// The driver has suppressed the interrupt.
    Suppressed,
}

/// Completed requests of a queue that were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which queue.
    pub queue: QueueId,
    /// Whether its driver was notified.
    pub notification: Notification,
}

/// What of a queue's work is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// Ticks from a request's arrival to its completion. It has arrived when the engine first sees it: at the beginning of the
    /// visit that takes it, or of an earlier one that saw it and left it. The requests of a visit are completed when the last
    /// of them is published.
    Arrival,
    /// Ticks from the publication of completions to the engine's next look at which the driver was known to take them
    /// ([`Queue::is_taken`](virtio::queue::Queue::is_taken)). It is an upper bound: the driver has done so since the look
    /// before, which was a turn ago.
    Taken,
    /// Requests that wait when a visit begins that takes some of them. 32 or more may be too few. In a packed ring a
    /// request counts as often as it has descriptors there.
    Occupancy,
}

/// A measured value of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueValue {
    /// Which queue.
    pub queue: QueueId,
    /// The period in which it is followed ([`Observer::period`]).
    pub period: u64,
    /// Its place among the queues that are followed, below [`FOLLOWED`](crate::follow::FOLLOWED).
    pub place: usize,
    /// What it is.
    pub what: Measured,
    /// The value: ticks, or requests.
    pub value: u64,
    /// How many requests have it.
    pub count: u32,
    /// When it was measured, in ticks of the engine's clock.
    pub at: u64,
}

/// Observes an engine. It runs on the engine's core, so it must neither wait nor allocate.
pub trait Observer {
    /// A turn has ended.
    fn turn(&self, turn: &Turn);
    /// A visit has ended.
    fn visit(&self, visit: &Visit);
    /// Completed requests were published.
    fn completion(&self, completion: &Completion);
    /// The number of the period in which queues are followed. 0: they are not. In another period other queues may be followed.
    fn period(&self) -> u64 {
        0
    }
    /// Something of a queue that is followed was measured.
    fn queue(&self, _: &QueueValue) {}
}

/// Observes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    #[inline(always)]
    fn turn(&self, _: &Turn) {}
    #[inline(always)]
    fn visit(&self, _: &Visit) {}
    #[inline(always)]
    fn completion(&self, _: &Completion) {}
    #[inline(always)]
    fn period(&self) -> u64 {
        0
    }
    #[inline(always)]
    fn queue(&self, _: &QueueValue) {}
}
