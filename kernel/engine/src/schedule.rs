//! Which port is visited next, and for how long: the one place for it.

/// A visit to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Which port.
    pub port: usize,
    /// Requests at most from each of its queues.
    pub limit: u32,
}

/// Decides the order of work within a turn.
pub trait Schedule {
    /// The next visit of this turn among the ports in `running` (a bit each), or None to end the turn.
    fn next(&mut self, running: u32) -> Option<Visit>;
    /// What came of a visit.
    fn done(&mut self, visit: &Visit, requests: u32);
}

/// Each port once a turn, another one first each time.
#[derive(Debug)]
pub struct RoundRobin {
    limit: u32,
    first: u32,
    visited: u32,
}

impl RoundRobin {
    /// With a limit of requests for each queue and visit.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit, first: 0, visited: 0 }
    }
}

impl Schedule for RoundRobin {
    fn next(&mut self, running: u32) -> Option<Visit> {
        let left = running & !self.visited;
        if left == 0 {
            self.visited = 0;
            self.first = (self.first + 1) % 32;
            return None;
        }
        let port = (left.rotate_right(self.first).trailing_zeros() + self.first) % 32;
        self.visited |= 1 << port;
        Some(Visit { port: port as usize, limit: self.limit })
    }

    fn done(&mut self, _visit: &Visit, _requests: u32) {}
}

#[cfg(test)]
mod tests {
    use super::{RoundRobin, Schedule};

    #[test]
    fn every_running_port_is_visited_once_a_turn_and_each_comes_first_in_turn() {
        let mut s = RoundRobin::new(64);
        let running = 0x8000_0005;
        let mut first = [0; 32];
        for _ in 0..32 {
            let turn: Vec<_> = core::iter::from_fn(|| s.next(running)).map(|v| v.port).collect();
            first[turn[0]] += 1;
            let mut sorted = turn.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 2, 31], "{turn:?}");
        }
        assert_eq!((first[0], first[2], first[31]), (1, 2, 29));
    }
}
