//! A schedule that is chosen when the engine is created.

use virtio::queue::Backlog;

use super::fine::Fine;
use super::per_device::PerDevice;
use super::visit::{GuestWeight, Portion, QueueId, Schedule, Served, Visit};

/// One of two schedules, chosen at run time.
#[allow(clippy::large_enum_variant, reason = "there is one in an engine, and no heap on its core")]
pub enum Chosen {
    /// All queues share the engine by time.
    Fine(Fine),
    /// The baseline: one device after the other.
    PerDevice(PerDevice),
}

impl Schedule for Chosen {
    fn enter(&mut self, queue: QueueId, share: GuestWeight, announced: bool) {
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

    fn reweigh(&mut self, share: GuestWeight) {
        match self {
            Self::Fine(s) => s.reweigh(share),
            Self::PerDevice(s) => s.reweigh(share),
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
    fn charge(&mut self, queue: QueueId, ticks: u64) {
        match self {
            Self::Fine(s) => s.charge(queue, ticks),
            Self::PerDevice(s) => s.charge(queue, ticks),
        }
    }

    #[inline]
    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        backlog: impl FnMut(QueueId) -> Option<Backlog>,
    ) -> Option<Portion> {
        match self {
            Self::Fine(s) => s.go_on(served, spent, now, backlog),
            Self::PerDevice(s) => s.go_on(served, spent, now, backlog),
        }
    }
}
