//! One device after the other, each once a turn and for a fixed number of requests, whatever they cost and whoever
//! waits: the baseline.

use super::{Glance, Portion, QueueId, Schedule, Served, Share, Visit};
use crate::backend::MAX_PORTS;

const PORTS: u32 = MAX_PORTS as u32;
const _: () = assert!(PORTS == u32::BITS);

/// Each port once a turn, another one first each time.
#[derive(Debug)]
pub struct PerDevice {
    limit: u32,
    /// Queues to be visited at each port, a bit each, and the ports that have any.
    queues: [u16; MAX_PORTS],
    ports: u32,
    first: u32,
    /// Ports already visited in this turn.
    visited: u32,
    /// The port that is visited and its queues that are still to come.
    current: (usize, u16),
}

impl PerDevice {
    /// With a limit of requests for each queue and turn.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit, queues: [0; MAX_PORTS], ports: 0, first: 0, visited: 0, current: (0, 0) }
    }
}

impl Schedule for PerDevice {
    fn enter(&mut self, queue: QueueId, _share: Share, _announced: bool) {
        if let Some(queues) = self.queues.get_mut(queue.port()) {
            *queues |= 1 << queue.queue();
            self.ports |= 1 << queue.port();
        }
    }

    fn leave(&mut self, queue: QueueId) {
        if let Some(queues) = self.queues.get_mut(queue.port()) {
            *queues &= !(1 << queue.queue());
            if *queues == 0 {
                self.ports &= !(1 << queue.port());
            }
        }
    }

    fn next(&mut self) -> Option<Visit> {
        let (mut port, mut queues) = self.current;
        while queues == 0 {
            let left = self.ports & !self.visited;
            if left == 0 {
                self.visited = 0;
                self.first = (self.first + 1) % PORTS;
                return None;
            }
            port = ((left.rotate_right(self.first).trailing_zeros() + self.first) % PORTS) as usize;
            self.visited |= 1 << port;
            queues = self.queues.get(port).copied().unwrap_or(0);
        }
        self.current = (port, queues & (queues - 1));
        let queue = QueueId::new(port, queues.trailing_zeros() as u16);
        Some(Visit { queue, portion: Portion { requests: self.limit, bytes: u64::MAX } })
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
    use super::{PerDevice, QueueId, Schedule, Share};

    #[test]
    fn every_queue_is_visited_once_a_turn_and_each_port_comes_first_in_turn() {
        let mut s = PerDevice::new(64);
        for (port, queue) in [(0, 1), (2, 1), (2, 3), (31, 1), (7, 1)] {
            s.enter(QueueId::new(port, queue), Share::of_guest(port), false);
        }
        s.leave(QueueId::new(7, 1));
        let mut first = [0; 32];
        for _ in 0..32 {
            let turn: Vec<_> = core::iter::from_fn(|| s.next()).map(|v| (v.queue.port(), v.queue.queue())).collect();
            first[turn[0].0] += 1;
            let mut sorted = turn.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [(0, 1), (2, 1), (2, 3), (31, 1)], "{turn:?}");
        }
        assert_eq!((first[0], first[2], first[31]), (1, 2, 29));
    }
}
