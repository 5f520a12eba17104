//! When an engine has the guests' timers expire.

use std::cell::{Cell, RefCell};

use virtio::config::Features;

use super::support::guest::Guest;
use super::support::relay::Relay;
use super::support::{Bench, fine, per_device};
use crate::clock::Clock;
use crate::engine::run;
use crate::observe::Unobserved;
use crate::requests::Requests;
use crate::schedule::{Chosen, Fine, Limits};

const SPLIT: Features = Features::all().difference(Features::RING_PACKED);

/// A clock that is ten ticks on each time that it is read, and keeps the times at which it was to expire timers.
#[derive(Default)]
struct Keeping {
    time: Cell<u64>,
    reads: Cell<u32>,
    expired: RefCell<Vec<u64>>,
}

impl Clock for Keeping {
    fn now(&self) -> u64 {
        self.reads.set(self.reads.get() + 1);
        self.time.set(self.time.get() + 10);
        self.time.get()
    }

    fn expire_timers(&self, now: u64) {
        self.expired.borrow_mut().push(now);
    }
}

/// Two guests, of which the first sends so many messages to the second.
fn sending(schedule: Chosen, messages: usize) -> (Bench, [Guest; 2]) {
    let (mut a, mut b) = (Guest::new(0, SPLIT, 256), Guest::new(1, SPLIT, 256));
    let bench = Bench::by(schedule, &[&a, &b], Requests::Poll);
    b.post(256, 100);
    for _ in 0..messages {
        let message = a.message(b.slot, 60, 0);
        assert!(a.send(&message));
    }
    (bench, [a, b])
}

#[test]
fn timers_expire_at_the_end_of_each_turn_if_it_is_idle_too() {
    for schedule in [per_device, fine] {
        let (mut bench, _guests) = sending(schedule(), 0);
        let clock = Keeping::default();
        for turns in 1..=5u64 {
            let end = bench.engine.counted_turn(0, &clock, &Unobserved);
            assert_eq!(end, 10 * turns);
            assert_eq!(clock.expired.borrow().last(), Some(&end), "at the time when the turn has ended");
            assert_eq!(clock.expired.borrow().len() as u64, turns, "once");
        }
    }
}

#[test]
fn timers_expire_at_the_end_of_each_portion_that_took_something() {
    // A visit of 64 requests has two portions.
    let small =
        || Chosen::Fine(Fine::new(Limits { requests: 64, bytes: 1 << 20, quantum: 1 << 40, least: 8, stall: 1 << 40 }));
    let schedules: [fn() -> Chosen; 3] = [per_device, fine, small];
    for (n, schedule) in schedules.into_iter().enumerate() {
        for messages in [1, 7, 8, 9, 64, 200] {
            let (mut bench, _guests) = sending(schedule(), messages);
            let clock = Keeping::default();
            let (mut turns, mut now) = (0, 0);
            while bench.engine.backend().portions == 0 || clock.expired.borrow().len() < 3 * messages {
                let portions = bench.engine.backend().portions;
                let before = clock.expired.borrow().len() as u32;
                now = bench.engine.counted_turn(now, &clock, &Unobserved);
                turns += 1;
                let took = bench.engine.backend().portions - portions;
                let expired = clock.expired.borrow().len() as u32 - before;
                assert_eq!(expired, took + 1, "schedule {n}, {messages} messages: each portion's, and the turn's");
            }
            let expired = clock.expired.take();
            assert!(expired.is_sorted_by(|a, b| a < b), "each at its own time: {expired:?}");
            assert_eq!(expired.len() as u32, turns + bench.engine.backend().portions);
            assert_eq!(clock.reads.get() as usize, expired.len(), "as often as the clock is read, and then");
        }
    }
}

#[test]
fn reading_the_clock_has_no_effect() {
    let clock = Keeping::default();
    (0..100).for_each(|n| assert_eq!(clock.now(), 10 * (n + 1)));
    assert_eq!((clock.reads.get(), clock.expired.take()), (100, vec![]));
    // The first reading of a loop is no end of anything.
    let (mut bench, _guests) = sending(per_device(), 1);
    bench.engine.control().stop();
    run(&mut bench.engine, &clock, &Unobserved);
    assert_eq!((clock.reads.get(), clock.expired.take()), (101, vec![]));
}

#[test]
fn a_clock_without_timers_is_any_function_that_tells_the_time() {
    let clock = || 7;
    assert_eq!(clock.now(), 7);
    clock.expire_timers(7);
    let (mut bench, [a, _b]): (Bench<Relay>, _) = sending(per_device(), 3);
    assert_eq!(bench.engine.counted_turn(7, &clock, &Unobserved), 7);
    assert_eq!(a.tx.used_index(), 3);
}
