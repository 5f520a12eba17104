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

/// Observes an engine. It runs on the engine's core, so it must neither wait nor allocate.
pub trait Observer {
    /// A turn has ended.
    fn turn(&self, turn: &Turn);
    /// A visit has ended.
    fn visit(&self, visit: &Visit);
    /// Completed requests were published.
    fn completion(&self, completion: &Completion);
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
}
