//! An observer that counts: how many requests a visit takes, how long a turn is, how often a driver is interrupted.
//!
//! It is the observer of the hypervisor's engines. It is off unless the operator switches it on (`watch on`). Other
//! cores read it without stopping anything.

use virtio::counters::Counter;

use crate::observe::{Completion, Notification, Observer, Turn, Visit};

/// Number of size classes of visits: 1 request, 2 to 3, 4 to 7, and so on. The last class is 256 or more.
pub const SIZES: usize = 9;

/// What was counted since the start, while the engine was observed.
#[derive(Debug, Default)]
pub struct Profile {
    visits: [Counter; SIZES],
    /// Visits that took no request.
    pub empty_visits: Counter,
    /// Ticks of the longest turn.
    pub longest_turn: Counter,
    /// Completions of a queue for which its driver got an interrupt.
    pub notified: Counter,
    /// Completions of a queue for which its driver wanted none.
    pub suppressed: Counter,
}

impl Profile {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            visits: [const { Counter::new() }; SIZES],
            empty_visits: Counter::new(),
            longest_turn: Counter::new(),
            notified: Counter::new(),
            suppressed: Counter::new(),
        }
    }

    /// Visits by size class: entry `n` counts visits with at least `2^n` and fewer than `2^(n + 1)` requests. The last
    /// entry has no upper limit.
    pub fn visits(&self) -> impl Iterator<Item = u64> + '_ {
        self.visits.iter().map(Counter::get)
    }
}

impl Observer for Profile {
    fn turn(&self, turn: &Turn) {
        let ticks = turn.end.wrapping_sub(turn.begin);
        if ticks > self.longest_turn.get() {
            self.longest_turn.set(ticks);
        }
    }

    fn visit(&self, visit: &Visit) {
        match visit.requests.checked_ilog2() {
            Some(size) => {
                if let Some(counter) = self.visits.get((size as usize).min(SIZES - 1)) {
                    counter.add(1);
                }
            }
            None => self.empty_visits.add(1),
        }
    }

    fn completion(&self, completion: &Completion) {
        match completion.notification {
            Notification::Interrupt => self.notified.add(1),
            Notification::Suppressed => self.suppressed.add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Profile, SIZES};
    use crate::observe::{Completion, Notification, Observer as _, Turn, Visit};
    use crate::schedule::QueueId;

    #[test]
    fn visits_are_counted_by_powers_of_two() {
        let profile = Profile::new();
        for requests in [0, 1, 2, 3, 4, 255, 256, 100_000] {
            profile.visit(&Visit { queue: QueueId::new(0, 1), begin: 1, end: 2, requests, bytes: 0 });
        }
        let mut expected = [0; SIZES];
        (expected[0], expected[1], expected[2], expected[7], expected[8]) = (1, 2, 1, 1, 2);
        assert_eq!(profile.visits().collect::<Vec<_>>(), expected);
        assert_eq!(profile.empty_visits.get(), 1);
    }

    #[test]
    fn the_longest_turn_and_each_kind_of_completion_are_kept() {
        let profile = Profile::new();
        for (begin, end) in [(10, 15), (20, 40), (50, 51)] {
            profile.turn(&Turn { begin, end, requests: 1 });
        }
        let queue = QueueId::new(3, 0);
        for notification in [Notification::Interrupt, Notification::Suppressed, Notification::Interrupt] {
            profile.completion(&Completion { queue, notification });
        }
        assert_eq!((profile.longest_turn.get(), profile.notified.get(), profile.suppressed.get()), (20, 2, 1));
    }
}
