//! Queues that are reset one by one while the device runs (virtio 1.3 2.6.1), as Linux does to resize a ring.

use super::{ALL, PACKED, PLAIN};
use crate::control::{Command, Reply};
use crate::requests::Requests;
use crate::tests::support::guest::{Guest, RX, TX};
use crate::tests::support::two;
use virtio::config::QueueConfig;
use virtio::fault::Fault;
use virtio::shared::Shared;

/// Sends a message by whatever way and says whether it came.
fn passes(a: &mut Guest, b: &mut Guest, turn: &mut impl FnMut()) -> bool {
    let message = a.message(b.slot, 60, 3);
    assert!(a.send(&message));
    if a.tx.kick_prepare() {
        a.shared.kick(TX);
    }
    turn();
    b.receive().is_some_and(|received| received == message)
}

#[test]
fn rings_are_resized_while_the_other_way_goes_on() {
    for requests in [Requests::Poll, Requests::Notify] {
        let (mut a, mut b, mut bench) = two(ALL, requests);
        let mut turn = || {
            bench.turn();
            bench.turn();
        };
        a.post(100, 2048);
        let mut sizes = [64, 256, 8, 1, 128].into_iter().filter(|&size| PACKED || size > 1);
        for _ in 0..4 {
            let size = sizes.next().unwrap();
            // What waits is the driver's to take back.
            let waiting = a.message(b.slot, 60, 9);
            assert!(a.send(&waiting));
            a.resize(TX, size, &mut turn);
            while b.receive().is_some() {}
            for _ in 0..3 * size {
                b.post(1, 2048);
                assert!(passes(&mut a, &mut b, &mut turn), "transmit queue of {size}, {requests:?}");
            }
            b.resize(RX, size, &mut turn);
            assert!(!passes(&mut a, &mut b, &mut turn), "no buffer is left from before");
            for _ in 0..3 * size {
                b.post(1, 2048);
                assert!(passes(&mut a, &mut b, &mut turn), "receive queue of {size}, {requests:?}");
            }
            assert!(passes(&mut b, &mut a, &mut turn), "the other queues are as they were");
            a.post(1, 2048);
        }
        for guest in [&a, &b] {
            let counters = guest.shared.counters();
            assert_eq!((counters.queue_resets.get(), counters.resets.get(), counters.faults.get()), (4, 0, 0));
        }
    }
}

#[test]
fn nothing_touches_a_queue_that_is_reset_and_its_interrupts_are_gone() {
    let (mut a, mut b, mut bench) = two(ALL, Requests::Poll);
    b.shared.reset_queue(RX);
    a.shared.reset_queue(TX);
    bench.turn();
    assert!(b.shared.queue_reset_done(RX) && a.shared.queue_reset_done(TX));
    assert_eq!((b.shared.queue(RX), a.shared.queue(TX)), (QueueConfig::RESET, QueueConfig::RESET));
    bench.interrupts.take();
    let message = a.message(b.slot, 60, 3);
    assert!(a.send(&message));
    a.shared.kick(TX);
    let back = b.message(a.slot, 60, 3);
    assert!(b.send(&back));
    a.shared.kick(TX);
    bench.turn();
    bench.turn();
    assert!(a.tx.take_used().is_none() && b.receive().is_none());
    assert!(bench.interrupts.take().iter().all(|&(device, vector)| (device, vector) == (101, b.vector(2))));
    assert_eq!(bench.engine.visited_queues(), 1, "b's transmit queue");
}

#[test]
fn without_the_feature_or_a_queue_in_use_there_is_nothing_to_reset() {
    let (a, b, mut bench) = two(PLAIN, Requests::Poll);
    let queue = a.tx.config;
    assert!(!a.shared.reset_queue(TX) && !a.shared.configure_queue(TX, &queue));
    bench.turn();
    assert_eq!(a.shared.queue(TX), queue);
    drop(b);
    let (a, _b, mut bench) = two(ALL, Requests::Poll);
    let resets = |shared: &Shared, index| shared.reset_queue(index);
    assert!(!resets(a.shared, 2), "never enabled");
    assert!(!resets(a.shared, 77) && a.shared.queue_reset_done(77));
    assert!(!a.shared.configure_queue(TX, &a.tx.config), "in use");
    assert!(resets(a.shared, TX) && resets(a.shared, TX));
    assert!(!a.shared.configure_queue(TX, &a.tx.config), "its reset is not done");
    bench.turn();
    assert!(!resets(a.shared, TX), "not in use any more");
    assert!(!a.shared.configure_queue(TX, &QueueConfig { enabled: false, ..a.tx.config }));
    assert!(a.shared.configure_queue(TX, &a.tx.config));
    assert!(!a.shared.configure_queue(TX, &a.tx.config));
    assert!(resets(a.shared, TX), "before the engine has seen it");
    bench.turn();
    assert!(a.shared.queue_reset_done(TX));
    assert_eq!((a.shared.queue(TX), bench.engine.visited_queues()), (QueueConfig::RESET, 1));
}

#[test]
fn a_queue_set_up_against_the_rules_breaks_the_device_and_can_be_reset_all_the_same() {
    let (mut a, mut b, mut bench) = two(ALL, Requests::Poll);
    a.shared.reset_queue(TX);
    bench.turn();
    a.shared.configure_queue(TX, &QueueConfig { desc: u64::MAX << 4, ..a.tx.config });
    bench.turn();
    assert!(a.shared.needs_reset());
    assert_eq!(a.shared.faults().find(|(fault, _)| *fault == Fault::RingAddress).unwrap().1, 1);
    assert!(a.shared.reset_queue(TX));
    bench.turn();
    assert!(a.shared.queue_reset_done(TX));
    a.shared.configure_queue(TX, &a.tx.config);
    a.shared.request_reset();
    bench.turn();
    assert!(a.shared.reset_done());
    a.start();
    bench.turn();
    assert!(passes(&mut a, &mut b, &mut || {
        bench.turn();
    }));
}

#[test]
fn of_a_device_that_failed_with_a_buffer_taken_a_queue_can_be_reset_all_the_same() {
    let (mut a, mut b, mut bench) = two(ALL, Requests::Poll);
    a.post(2, 40);
    // The second buffer of the message is nowhere.
    a.memory.write_u64(a.rx.config.desc + 16, u64::MAX - 0xfff).unwrap();
    let message = b.message(a.slot, 60, 3);
    assert!(b.send(&message));
    bench.turn();
    assert!(a.shared.needs_reset());
    assert!(a.shared.reset_queue(RX));
    bench.turn();
    assert!(a.shared.queue_reset_done(RX));
    assert_eq!(a.shared.queue(RX), QueueConfig::RESET);
}

#[test]
fn a_reset_asked_for_before_the_device_runs_is_done_when_it_does() {
    let (mut a, _b, mut bench) = two(ALL, Requests::Poll);
    a.shared.request_reset();
    bench.turn();
    a.start();
    assert!(a.shared.reset_queue(TX));
    bench.turn();
    assert!(a.shared.queue_reset_done(TX));
    assert_eq!((a.shared.queue(TX), bench.engine.visited_queues()), (QueueConfig::RESET, 1));
}

#[test]
fn a_device_is_saved_with_a_queue_out_of_use_but_not_in_between() {
    let (a, _b, mut bench) = two(ALL, Requests::Poll);
    a.shared.reset_queue(TX);
    bench.turn();
    let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 0 }) else { panic!("no state") };
    assert!(state.queues[usize::from(RX)].config.enabled && !state.queues[usize::from(TX)].config.enabled);
    assert_eq!(bench.attach(0, &a), Reply::Attached);
    a.shared.request_reset();
}
