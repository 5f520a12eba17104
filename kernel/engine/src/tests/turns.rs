//! What a turn takes, and how turns are counted.

use super::{ALL, PLAIN};
use crate::engine::run;
use crate::observe::Unobserved;
use crate::tests::support::Bench;
use crate::tests::support::guest::Guest;

#[test]
fn the_loop_counts_its_turns_and_stops_when_asked() {
    let (mut a, b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let mut bench = Bench::with(&[&a, &b]);
    let message = a.message(b.slot, 60, 0);
    a.send(&message);
    let control = bench.engine.control();
    let ticks = std::cell::Cell::new(0u64);
    let clock = || {
        ticks.set(ticks.get() + 10);
        // Once for each turn and once more for the visit that found something.
        if ticks.get() == 60 {
            control.stop();
        }
        ticks.get()
    };
    run(&mut bench.engine, &clock, &Unobserved);
    let c = &control.counters;
    assert_eq!((c.busy_turns.get(), c.idle_turns.get(), c.requests.get()), (1, 3, 1));
    assert_eq!((c.busy_cycles.get(), c.idle_cycles.get()), (20, 30));
}

#[test]
fn turns_longer_than_said_are_counted_as_long() {
    let bench = &mut Bench::with(&[]);
    bench.engine.set_long_turn(100);
    for (begin, end) in [(0, 100), (100, 201), (201, 1 << 40)] {
        bench.engine.counted_turn(begin, &|| end, &Unobserved);
    }
    assert_eq!(bench.engine.control().counters.long_turns.get(), 2);
}

#[test]
fn one_busy_guest_takes_no_more_than_its_share_of_a_turn() {
    let mut g: Vec<_> = (0..3).map(|slot| Guest::new(slot, PLAIN, 256)).collect();
    let mut bench = Bench::with(&g.iter().collect::<Vec<_>>());
    g[2].post(256, 1526);
    let to = g[2].slot;
    for (i, n) in [(0, 250), (1, 10)] {
        for _ in 0..n {
            let message = g[i].message(to, 60, 0);
            assert!(g[i].send(&message));
        }
    }
    assert_eq!(bench.turn(), 64 + 10);
    assert_eq!((g[0].tx.used_index(), g[1].tx.used_index()), (64, 10));
}
