//! The baseline: visits each device once a turn, with a fixed limit of requests. It ignores what requests cost and
//! which client waits.

use virtio::queue::Backlog;

use super::visit::{GuestWeight, Portion, QueueId, Schedule, Served, Visit};
use crate::slots::{MAX_SLOTS, SlotSet};

/// Visits each slot once a turn. Each turn starts at another slot.
#[derive(Debug)]
pub struct PerDevice {
    limit: u32,
    /// Queues to visit at each slot, one bit each.
    queues: [u16; MAX_SLOTS],
    /// Slots with a queue to visit.
    slots: SlotSet,
    /// The slot at which this turn starts.
    first: usize,
    /// Slots visited in this turn.
    visited: SlotSet,
    /// The current slot, and its queues that are still to visit.
    current: (usize, u16),
}

impl PerDevice {
    /// A schedule with a limit of requests for each queue and turn.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit, queues: [0; MAX_SLOTS], slots: SlotSet::NONE, first: 0, visited: SlotSet::NONE, current: (0, 0) }
    }
}

impl Schedule for PerDevice {
    fn enter(&mut self, queue: QueueId, _share: GuestWeight, _announced: bool) {
        if let Some(queues) = self.queues.get_mut(queue.slot()) {
            *queues |= 1 << queue.queue();
            self.slots.insert(queue.slot());
        }
    }

    fn leave(&mut self, queue: QueueId) {
        if let Some(queues) = self.queues.get_mut(queue.slot()) {
            *queues &= !(1 << queue.queue());
            if *queues == 0 {
                self.slots.remove(queue.slot());
            }
        }
    }

    /// There are no weights here.
    fn reweigh(&mut self, _share: GuestWeight) {}

    fn next(&mut self, _is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit> {
        let (mut slot, mut queues) = self.current;
        while queues == 0 {
            let Some(next) = self.slots.next_from(self.first, &self.visited) else {
                self.visited = SlotSet::NONE;
                self.first = self.first.wrapping_add(1) % MAX_SLOTS;
                return None;
            };
            slot = next;
            self.visited.insert(slot);
            queues = self.queues.get(slot).copied().unwrap_or(0);
        }
        self.current = (slot, queues & queues.wrapping_sub(1));
        let queue = QueueId::new(slot, queues.trailing_zeros() as u16);
        Some(Visit { queue, portion: Portion { requests: self.limit, bytes: u64::MAX } })
    }

    fn one_visit_a_turn(&self) -> bool {
        false
    }

    fn charge(&mut self, _queue: QueueId, _ticks: u64) {}

    fn go_on(
        &mut self,
        _served: Served,
        _spent: u64,
        _now: u64,
        _backlog: impl FnMut(QueueId) -> Option<Backlog>,
    ) -> Option<Portion> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{GuestWeight, MAX_SLOTS, PerDevice, QueueId, Schedule};

    #[test]
    fn every_queue_is_visited_once_a_turn_and_each_slot_comes_first_in_turn() {
        let mut s = PerDevice::new(64);
        for (slot, queue) in [(0, 1), (2, 1), (2, 3), (95, 1), (7, 1)] {
            s.enter(QueueId::new(slot, queue), GuestWeight::of_guest(slot), false);
        }
        s.leave(QueueId::new(7, 1));
        let mut first = [0; MAX_SLOTS];
        for _ in 0..MAX_SLOTS {
            let turn: Vec<_> =
                core::iter::from_fn(|| s.next(|_| false)).map(|v| (v.queue.slot(), v.queue.queue())).collect();
            first[turn[0].0] += 1;
            let mut sorted = turn.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [(0, 1), (2, 1), (2, 3), (95, 1)], "{turn:?}");
        }
        assert_eq!((first[0], first[2], first[95]), (MAX_SLOTS - 95, 2, 93));
    }
}
