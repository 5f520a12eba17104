//! Polling, notifications, and the way from one to the other; and interrupts, of which a turn raises one.

use super::{ALL, Bench, PLAIN};
use crate::control::{Attachment, Command, Reply};
use crate::requests::{Rates, Requests};
use crate::schedule::Share;
use crate::shared::Features;
use crate::testing::{BUFFERS, Guest};
use crate::uplink::NoNic;

pub const TX: u16 = 1;
/// In turns, which is what the bench's clock counts.
const ADAPTIVE: Requests = Requests::Adaptive(Rates { kicks: 4, window: 40, quiet: 10 });

/// A sender and a receiver with buffers, on an engine that has come to rest.
pub fn two(features: Features, requests: Requests) -> (Guest, Guest, Bench) {
    let (a, mut b) = (Guest::new(1, features, 256, 1500), Guest::new(2, features, 256, 1500));
    let mut bench = Bench::with_requests(&[&a, &b], requests);
    b.post(200, &[2048]);
    bench.turn();
    bench.turn();
    bench.interrupts.take();
    (a, b, bench)
}

/// Sends a frame; true if the driver has to notify.
fn send(a: &mut Guest, b: &Guest) -> bool {
    let frame = a.frame(b.mac, 60, 0);
    assert!(a.send(&frame, &[]));
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
                b.post(1, &[2048]);
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
    let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
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
    let (mut a, b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
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
    let Reply::Detached(Some(state)) = bench.command(Command::Detach { port: 0 }) else { panic!("no state") };
    let mut other = Bench::<NoNic>::new();
    assert_eq!(other.attach(3, &Guest::new(7, ALL, 256, 1500)), Reply::Attached);
    let (shared, memory) = (a.shared, a.memory.clone());
    let attachment = Attachment {
        port: 9,
        number: 9,
        shared,
        memory,
        requests: Requests::Notify,
        share: Share::of_guest(0),
        state: Some(state),
    };
    assert_eq!(other.command(Command::Attach(attachment)), Reply::Attached);
    other.turn();
    assert!(send(&mut a, &b), "armed there as well");
    a.shared.kick(TX);
    assert_eq!(bench.turn(), 0);
    assert_eq!(other.turn(), 1);
}

#[test]
fn all_completions_of_a_turn_raise_one_interrupt_for_each_queue() {
    for features in [ALL, PLAIN] {
        for frames in [1, 2, 64] {
            let (mut a, b, mut bench) = two(features, Requests::Poll);
            for _ in 0..frames {
                send(&mut a, &b);
            }
            assert_eq!(bench.turn(), frames);
            let mut sent = bench.interrupts.take();
            sent.sort_unstable();
            assert_eq!(sent, [(100, a.vector(2)), (101, b.vector(1))], "{features:?}, {frames} frames");
            assert_eq!(b.shared.counters().interrupts.get(), 1);
        }
    }
}

#[test]
fn a_driver_gets_the_interrupts_that_it_asked_for_and_no_other() {
    // With EVENT_IDX: the one at which the used index passes its event. Without: all or none.
    let (mut a, b, mut bench) = two(ALL, Requests::Poll);
    a.tx.disable_interrupts();
    b.rx.write_used_event(9);
    for frame in 0..20 {
        send(&mut a, &b);
        bench.turn();
        let wanted = if frame == 9 { vec![(101, b.vector(1))] } else { vec![] };
        assert_eq!(bench.interrupts.take(), wanted, "frame {frame}");
    }
    assert_eq!(b.shared.counters().interrupts_suppressed.get(), 19);
    let (mut a, mut b, mut bench) = two(PLAIN, Requests::Poll);
    a.tx.disable_interrupts();
    b.rx.disable_interrupts();
    for wanted in [0, 1, 0, 1] {
        send(&mut a, &b);
        bench.turn();
        assert_eq!(bench.interrupts.take().len(), wanted);
        if wanted == 0 { b.rx.enable_interrupts() } else { b.rx.disable_interrupts() }
    }
}
