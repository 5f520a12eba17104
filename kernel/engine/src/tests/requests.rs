//! Polling, notifications, and the way from one to the other.

use super::{ALL, PLAIN};
use crate::control::{Attachment, Command, Reply};
use crate::requests::{Rates, Requests};
use crate::schedule::GuestWeight;
use crate::tests::support::guest::{Guest, TX};
use crate::tests::support::relay::Relay;
use crate::tests::support::{Bench, per_device, two};
use virtio::testing::BUFFERS;

/// In turns, which is what the bench's clock counts.
const ADAPTIVE: Requests = Requests::Adaptive(Rates { kicks: 4, window: 40, quiet: 10 });

/// Sends a message; true if the driver has to notify.
fn send(a: &mut Guest, b: &Guest) -> bool {
    let message = a.message(b.slot, 60, 0);
    assert!(a.send(&message));
    a.tx.kick_prepare()
}

#[test]
fn a_notified_queue_costs_no_look_until_its_kick_and_is_served_in_the_turn_after_it() {
    for features in [ALL, PLAIN] {
        let (mut a, mut b, mut bench) = two(features, Requests::Notify);
        assert_eq!(bench.engine.visited_queues(), 0, "nobody is visited");
        for round in 1..=100 {
            assert!(send(&mut a, &b), "{features:?}: the driver has to notify");
            assert_eq!(bench.turn(), 0, "nothing is looked at unasked");
            a.shared.kick(TX);
            assert_eq!(bench.turn(), 1);
            // Until it has been found empty, more of it costs no exit.
            assert!(!send(&mut a, &b));
            assert_eq!(bench.turn(), 1);
            assert_eq!(bench.turn(), 0);
            assert_eq!(bench.engine.visited_queues(), 0);
            assert_eq!(a.shared.counters().kicks.get(), round);
            assert_eq!(a.shared.counters().arms.get(), round + 1);
            for _ in 0..2 {
                assert!(b.receive().is_some());
                b.post(1, 2048);
            }
        }
        assert!(!b.rx.kick_prepare(), "buffers are no work: offering them costs no exit");
        assert_eq!(a.shared.counters().polls.get(), 0);
    }
}

#[test]
fn a_polled_queue_is_visited_each_turn_and_never_armed() {
    for features in [ALL, PLAIN] {
        let (mut a, b, mut bench) = two(features, Requests::Poll);
        for _ in 0..100 {
            assert_eq!(bench.engine.visited_queues(), 2);
            assert!(!send(&mut a, &b));
            assert_eq!(bench.turn(), 1);
            bench.turn();
        }
        let c = a.shared.counters();
        assert_eq!((c.kicks.get(), c.arms.get(), c.polls.get()), (0, 0, 0));
    }
}

#[test]
fn an_adaptive_queue_is_polled_while_it_is_busy_and_armed_when_it_falls_silent() {
    for features in [ALL, PLAIN] {
        let (mut a, b, mut bench) = two(features, ADAPTIVE);
        let c = a.shared.counters();
        for _ in 0..4 {
            assert!(send(&mut a, &b));
            a.shared.kick(TX);
            assert_eq!((bench.turn(), bench.turn()), (1, 0));
        }
        assert_eq!((c.polls.get(), c.kicks.get()), (1, 4), "the fourth notification within the window was the last");
        for _ in 0..50 {
            assert!(!send(&mut a, &b));
            assert_eq!(bench.turn(), 1);
            (0..8).for_each(|_| assert_eq!(bench.turn(), 0));
        }
        assert_eq!((c.polls.get(), c.kicks.get(), c.arms.get()), (1, 4, 4), "short pauses do not end it");
        (0..10).for_each(|_| assert_eq!(bench.turn(), 0));
        assert_eq!(c.arms.get(), 5);
        assert_eq!(bench.engine.visited_queues(), 0);
        assert!(send(&mut a, &b), "and the next request is notified again");
        a.shared.kick(TX);
        assert_eq!(bench.turn(), 1);
    }
}

#[test]
fn a_device_that_fails_in_a_visit_to_another_is_visited_no_more() {
    let (mut a, mut b) = (Guest::new(0, ALL, 256), Guest::new(1, ALL, 256));
    let mut bench = Bench::with_requests(&[&a, &b], Requests::Poll);
    assert_eq!(bench.engine.visited_queues(), 2);
    // A receive buffer that the device may only read.
    b.rx.add(&[(BUFFERS, 2048, false)]).unwrap();
    assert!(!send(&mut a, &b), "a polled queue needs no notification");
    assert_eq!(bench.turn(), 1);
    assert!(b.shared.needs_reset());
    bench.turn();
    bench.turn();
    assert_eq!(bench.engine.visited_queues(), 1, "the sender's is left");
}

#[test]
fn what_is_offered_before_the_driver_can_know_that_it_must_notify_is_found_by_the_second_look() {
    // The driver asks whether to notify before the engine arms: no. The request is there when the engine looks again.
    let (mut a, b) = (Guest::new(0, ALL, 256), Guest::new(1, ALL, 256));
    let mut bench = Bench::with_requests(&[&a, &b], Requests::Notify);
    let before = a.shared.counters().arms.get();
    a.shared.kick(TX);
    for _ in 0..50 {
        assert_eq!(bench.turn(), 0, "armed, or still on the way there");
        send(&mut a, &b);
        a.shared.kick(TX);
        assert_eq!(bench.turn(), 1);
    }
    assert!(a.shared.counters().arms.get() >= before + 50);
}

#[test]
fn kicks_without_work_and_for_queues_that_are_not_there_do_no_harm() {
    let (mut a, b, mut bench) = two(ALL, Requests::Notify);
    for queue in [0, 1, 2, 7, 31, 32, u16::MAX] {
        a.shared.kick(queue);
        bench.turn();
        bench.turn();
        assert_eq!(bench.engine.visited_queues(), 0);
    }
    assert!(send(&mut a, &b));
    a.shared.kick(TX);
    assert_eq!(bench.turn(), 1);
    assert_eq!(a.shared.counters().faults.get(), 0);
}

#[test]
fn resets_and_new_starts_are_seen_on_an_engine_at_rest() {
    let (mut a, b, mut bench) = two(ALL, Requests::Notify);
    for _ in 0..3 {
        assert_eq!(bench.engine.visited_queues(), 0);
        a.shared.request_reset();
        bench.turn();
        assert!(a.shared.reset_done());
        a.start();
        bench.turn();
        bench.turn();
        assert!(send(&mut a, &b));
        a.shared.kick(TX);
        assert_eq!(bench.turn(), 1);
        bench.turn();
    }
    assert_eq!(a.shared.counters().activations.get(), 4);
}

#[test]
fn a_device_rings_for_the_engine_that_has_it() {
    let (mut a, b, mut bench) = two(ALL, Requests::Notify);
    let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 0 }) else { panic!("no state") };
    let mut other = Bench::new(Relay::default(), per_device());
    assert_eq!(other.attach(3, &Guest::new(6, ALL, 256)), Reply::Attached);
    let attachment =
        Attachment { requests: Requests::Notify, share: GuestWeight::of_guest(0), state: Some(state), ..a.attachment(9) };
    assert_eq!(other.command(Command::Attach(attachment)), Reply::Attached);
    other.turn();
    assert!(send(&mut a, &b), "armed there as well");
    a.shared.kick(TX);
    assert_eq!(bench.turn(), 0);
    assert_eq!(other.turn(), 1);
}
