//! What is measured of the queues that are followed.

use std::cell::{Cell, RefCell};

use super::{ALL, OUT_OF_ORDER};
use crate::backend::Backend;
use crate::follow::FOLLOWED;
use crate::observe::{Completion, Measured, Observer, QueueValue, Turn, Visit};
use crate::schedule::QueueId;
use crate::tests::support::guest::{Guest, RX, TX};
use crate::tests::support::late::Late;
use crate::tests::support::{Bench, per_device};

const FROM: QueueId = QueueId::new(0, TX);
const TO: QueueId = QueueId::new(1, RX);

/// Keeps what was measured.
struct Keeping {
    period: Cell<u64>,
    values: RefCell<Vec<QueueValue>>,
}

impl Observer for Keeping {
    fn turn(&self, _: &Turn) {}
    fn visit(&self, _: &Visit) {}
    fn completion(&self, _: &Completion) {}

    fn period(&self) -> u64 {
        self.period.get()
    }

    fn queue(&self, value: &QueueValue) {
        self.values.borrow_mut().push(*value);
    }
}

impl Keeping {
    fn new() -> Self {
        Self { period: Cell::new(1), values: RefCell::default() }
    }

    /// Takes the values of a queue: each with what it is and how many requests have it.
    fn take(&self, queue: QueueId) -> Vec<(Measured, u64, u32)> {
        let all = self.values.take();
        let (own, others) = all.into_iter().partition(|value| value.queue == queue);
        *self.values.borrow_mut() = others;
        own.into_iter().map(|value: QueueValue| (value.what, value.value, value.count)).collect()
    }
}

/// A turn from `now` to `end`.
fn turn<B: Backend>(bench: &mut Bench<B>, (now, end): (u64, u64), observer: &Keeping) {
    bench.engine.counted_turn(now, &|| end, observer);
}

fn send(from: &mut Guest, to: &Guest, count: usize) {
    for _ in 0..count {
        let message = from.message(to.slot, 60, 1);
        assert!(from.send(&message));
    }
}

/// Two guests, the second one with buffers and interrupts.
fn two() -> (Guest, Guest, Bench, Keeping) {
    let (a, mut b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let bench = Bench::with(&[&a, &b]);
    bench.engine.control().observe(true);
    b.post(32, 100);
    b.rx.enable_interrupts();
    (a, b, bench, Keeping::new())
}

#[test]
fn requests_are_measured_from_the_visit_to_the_turn_end_and_completions_until_the_driver_has_taken_them() {
    let (mut a, mut b, mut bench, observer) = two();
    a.tx.enable_interrupts();
    send(&mut a, &b, 3);
    turn(&mut bench, (100, 130), &observer);
    assert_eq!(observer.take(FROM), [(Measured::Occupancy, 3, 1), (Measured::Arrival, 30, 3)]);
    assert_eq!(observer.take(TO), [], "nobody asks for the buffers, and none was taken");
    turn(&mut bench, (200, 210), &observer);
    assert_eq!(observer.take(TO), [], "the driver has done nothing");
    assert_eq!((0..4).filter(|_| b.receive().is_some()).count(), 3);
    b.rx.enable_interrupts();
    turn(&mut bench, (300, 330), &observer);
    assert_eq!(observer.take(TO), [(Measured::Taken, 200, 1)], "told at 130, seen at 330");
    turn(&mut bench, (400, 410), &observer);
    assert_eq!(observer.take(TO), [], "measured once");
    assert_eq!(observer.take(FROM), [], "the sender has not looked");
    while a.tx.take_used().is_some() {}
    a.tx.enable_interrupts();
    turn(&mut bench, (500, 530), &observer);
    assert_eq!(observer.take(FROM), [(Measured::Taken, 400, 1)]);
}

#[test]
fn what_a_slow_back_end_completes_counts_when_the_last_request_of_the_visit_is_published() {
    let a = Guest::new(0, OUT_OF_ORDER, 64);
    let mut bench = Bench::new(Late::default(), per_device());
    assert_eq!(bench.command(crate::control::Command::Attach(a.attachment(0))), crate::control::Reply::Attached);
    bench.engine.control().observe(true);
    let (mut a, observer) = (a, Keeping::new());
    let to = Guest::new(1, OUT_OF_ORDER, 64);
    send(&mut a, &to, 2);
    turn(&mut bench, (100, 110), &observer);
    assert_eq!(observer.take(FROM), [(Measured::Occupancy, 2, 1)]);
    // Taken meanwhile: seen, but not followed to its end.
    send(&mut a, &to, 1);
    turn(&mut bench, (200, 210), &observer);
    assert_eq!(observer.take(FROM), [(Measured::Occupancy, 1, 1)]);
    bench.engine.backend_mut().release = 1;
    turn(&mut bench, (300, 310), &observer);
    assert_eq!(observer.take(FROM), [], "one of two");
    bench.engine.backend_mut().release = 2;
    turn(&mut bench, (400, 420), &observer);
    assert_eq!(observer.take(FROM), [(Measured::Arrival, 320, 2)]);
}

#[test]
fn requests_that_a_visit_leaves_have_arrived_when_it_saw_them() {
    let a = Guest::new(0, ALL, 256);
    let mut bench =
        Bench::new(crate::tests::support::relay::Relay::default(), crate::schedule::Chosen::PerDevice(crate::schedule::PerDevice::new(4)));
    assert_eq!(bench.attach(0, &a), crate::control::Reply::Attached);
    bench.engine.control().observe(true);
    let (mut a, observer) = (a, Keeping::new());
    let nobody = Guest::new(1, ALL, 64);
    send(&mut a, &nobody, 6);
    turn(&mut bench, (100, 110), &observer);
    send(&mut a, &nobody, 2);
    turn(&mut bench, (200, 210), &observer);
    turn(&mut bench, (300, 310), &observer);
    let found: Vec<_> = observer.take(FROM).into_iter().filter(|(what, ..)| *what == Measured::Arrival).collect();
    assert_eq!(found, [(Measured::Arrival, 10, 4), (Measured::Arrival, 110, 4)], "of the second four two were seen at 100");
}

#[test]
fn a_new_period_follows_anew_and_period_0_nothing() {
    let (mut a, b, mut bench, observer) = two();
    observer.period.set(0);
    send(&mut a, &b, 1);
    turn(&mut bench, (100, 110), &observer);
    assert_eq!(observer.values.take(), []);
    observer.period.set(2);
    send(&mut a, &b, 1);
    turn(&mut bench, (200, 210), &observer);
    let places = |observer: &Keeping| observer.values.take().iter().map(|value| (value.queue, value.place)).collect::<Vec<_>>();
    assert_eq!(places(&observer), [(FROM, 0), (FROM, 0)]);
    observer.period.set(3);
    let (mut b, c) = (b, Guest::new(0, ALL, 64));
    a.post(4, 100);
    send(&mut b, &c, 1);
    turn(&mut bench, (300, 310), &observer);
    assert_eq!(places(&observer)[0], (QueueId::new(1, TX), 0), "the first place is another queue's");
}

#[test]
fn a_device_that_is_reset_meanwhile_is_not_measured() {
    let (mut a, mut b, mut bench, observer) = two();
    send(&mut a, &b, 2);
    turn(&mut bench, (100, 110), &observer);
    observer.values.take();
    b.shared.request_reset();
    turn(&mut bench, (200, 210), &observer);
    b.start();
    turn(&mut bench, (300, 310), &observer);
    b.post(8, 100);
    b.rx.enable_interrupts();
    turn(&mut bench, (400, 410), &observer);
    assert_eq!(observer.take(TO), [], "what it was told before is no more");
    send(&mut a, &b, 1);
    turn(&mut bench, (500, 510), &observer);
    assert!(b.receive().is_some());
    b.rx.enable_interrupts();
    turn(&mut bench, (600, 610), &observer);
    assert_eq!(observer.take(TO), [(Measured::Taken, 100, 1)]);
}

#[test]
fn no_more_queues_are_followed_than_there_is_room_for() {
    let mut guests: Vec<_> = (0..FOLLOWED + 2).map(|slot| Guest::new(slot, ALL, 64)).collect();
    let mut bench = Bench::with(&guests.iter().collect::<Vec<_>>());
    bench.engine.control().observe(true);
    let observer = Keeping::new();
    for n in 0..guests.len() {
        let to = guests[(n + 1) % guests.len()].slot;
        let message = guests[n].message(to, 60, 1);
        assert!(guests[n].send(&message));
    }
    turn(&mut bench, (100, 110), &observer);
    let values = observer.values.take();
    let mut places: Vec<_> = values.iter().map(|value| (value.place, value.queue)).collect();
    places.dedup();
    assert!(places.iter().all(|&(place, _)| place < FOLLOWED));
    let mut queues: Vec<_> = values.iter().map(|value| (value.queue.slot(), value.queue.queue())).collect();
    queues.sort_unstable();
    queues.dedup();
    assert_eq!(queues.len(), FOLLOWED, "each place is one queue's: {values:?}");
}
