//! A guest that asks for more than its rate waits. Others do not.

use super::support::{Bench, FORMS, Guest};
use crate::limit::Limit;

/// A request of 64 bytes every 128 turns, and two at once after a pause.
const LIMIT: Limit = Limit { ticks_per_byte: 2, burst: 128 };

#[test]
fn a_greedy_guest_gets_its_rate_and_a_modest_one_is_served_at_once() {
    for features in FORMS {
        let (mut greedy, mut modest) = (Guest::new(1, features), Guest::new(2, features));
        let mut bench = Bench::limited(&[&greedy, &modest], LIMIT);
        for _ in 0..12 {
            greedy.ask(&[(64, true)]);
        }
        bench.turn();
        bench.turn();
        assert_eq!(greedy.counted()[0], 2, "{features:?}");
        for _ in 0..4 {
            modest.ask(&[(16, true)]);
            bench.turn();
            assert_eq!(modest.used(), Some(16));
        }
        for _ in 0..5 * 128 {
            bench.turn();
        }
        assert_eq!(greedy.counted(), [2 + 5, 64 * 7, 0]);
        assert!(greedy.counters.limited.get() >= 5 && modest.counters.limited.get() == 0);
        assert_eq!(bench.source().asked, 7 + 4, "the source is not asked for what may not be given");
    }
}

#[test]
fn a_reset_does_not_wait_for_the_rate() {
    for features in FORMS {
        let mut guest = Guest::new(1, features);
        let mut bench = Bench::limited(&[&guest], Limit { ticks_per_byte: u64::MAX / 64, burst: 64 });
        (0..2).for_each(|_| drop(guest.ask(&[(64, true)])));
        bench.turn();
        assert_eq!(guest.counted()[0], 1);
        guest.shared.request_reset();
        bench.turn();
        assert!(guest.shared.reset_done());
    }
}
