//! One device after the other, each once a turn and for a fixed number of requests, whatever they cost and whoever
//! waits: the baseline.

use super::{Glance, Portion, QueueId, Schedule, Served, Share, Visit};
use crate::backend::MAX_PORTS;
use crate::ports::PortSet;

/// Each port once a turn, another one first each time.
#[derive(Debug)]
pub struct PerDevice {
    limit: u32,
    /// Queues to be visited at each port, a bit each, and the ports that have any.
    queues: [u16; MAX_PORTS],
    ports: PortSet,
    first: usize,
    /// Ports already visited in this turn.
    visited: PortSet,
    /// The port that is visited and its queues that are still to come.
    current: (usize, u16),
}

impl PerDevice {
    /// With a limit of requests for each queue and turn.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit, queues: [0; MAX_PORTS], ports: PortSet::NONE, first: 0, visited: PortSet::NONE, current: (0, 0) }
    }
}

impl Schedule for PerDevice {
    fn enter(&mut self, queue: QueueId, _share: Share, _announced: bool) {
        if let Some(queues) = self.queues.get_mut(queue.port()) {
            *queues |= 1 << queue.queue();
            self.ports.insert(queue.port());
        }
    }

    fn leave(&mut self, queue: QueueId) {
        if let Some(queues) = self.queues.get_mut(queue.port()) {
            *queues &= !(1 << queue.queue());
            if *queues == 0 {
                self.ports.remove(queue.port());
            }
        }
    }

    fn next(&mut self, _is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit> {
        let (mut port, mut queues) = self.current;
        while queues == 0 {
            let Some(next) = self.ports.next_from(self.first, &self.visited) else {
                self.visited = PortSet::NONE;
                self.first = (self.first + 1) % MAX_PORTS;
                return None;
            };
            port = next;
            self.visited.insert(port);
            queues = self.queues.get(port).copied().unwrap_or(0);
        }
        self.current = (port, queues & (queues - 1));
        let queue = QueueId::new(port, queues.trailing_zeros() as u16);
        Some(Visit { queue, portion: Portion { requests: self.limit, bytes: u64::MAX } })
    }

    fn one_visit_a_turn(&self) -> bool {
        false
    }

    fn go_on(
        &mut self,
        _served: Served,
        _spent: u64,
        _now: u64,
        _glance: impl FnMut(QueueId) -> Option<Glance>,
    ) -> Option<Portion> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_PORTS, PerDevice, QueueId, Schedule, Share};

    #[test]
    fn every_queue_is_visited_once_a_turn_and_each_port_comes_first_in_turn() {
        let mut s = PerDevice::new(64);
        for (port, queue) in [(0, 1), (2, 1), (2, 3), (95, 1), (7, 1)] {
            s.enter(QueueId::new(port, queue), Share::of_guest(port), false);
        }
        s.leave(QueueId::new(7, 1));
        let mut first = [0; MAX_PORTS];
        for _ in 0..MAX_PORTS {
            let turn: Vec<_> =
                core::iter::from_fn(|| s.next(|_| false)).map(|v| (v.queue.port(), v.queue.queue())).collect();
            first[turn[0].0] += 1;
            let mut sorted = turn.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [(0, 1), (2, 1), (2, 3), (95, 1)], "{turn:?}");
        }
        assert_eq!((first[0], first[2], first[95]), (MAX_PORTS - 95, 2, 93));
    }
}
