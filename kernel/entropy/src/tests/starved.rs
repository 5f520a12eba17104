//! Requests for which the source has no bytes.

use engine::control::{Command, Reply};
use virtio::phase::Phase;

use super::support::{Bench, FORMS, Guest, PACKED, SPLIT};
use virtio::config::Features;

/// Makes a guest with a request that waits for the source, and another request behind it.
fn starved(features: Features) -> (Guest, Bench, Vec<u64>) {
    let mut guest = Guest::new(5, features);
    let mut bench = Bench::with(&[&guest]);
    bench.source().fills_left = 0;
    let mut at = guest.ask(&[(16, true), (64, true)]);
    at.extend(guest.ask(&[(64, true)]));
    assert_eq!(bench.turn(), 1, "taken");
    (guest, bench, at)
}

#[test]
fn a_request_waits_for_the_source_and_is_completed_then() {
    for features in FORMS {
        let (mut guest, mut bench, at) = starved(features);
        guest.queue.enable_interrupts();
        bench.interrupts.take();
        for _ in 0..100 {
            assert_eq!(bench.turn(), 0);
            assert_eq!(guest.used(), None);
        }
        assert_eq!(guest.counted(), [0, 0, 1], "the one behind it has not been taken");
        let asked = bench.source().asked;
        bench.turn();
        assert_eq!(bench.source().asked, asked + 1, "a turn asks a source that is dry once");
        bench.source().fills_left = usize::MAX;
        assert_eq!(bench.turn(), 2);
        assert_eq!((guest.used(), guest.used(), guest.used()), (Some(16), Some(64), None), "its first buffer, and all");
        assert_eq!(guest.bytes(at[0], 16), (1..=16).collect::<Vec<u8>>());
        assert_eq!(guest.bytes(at[1], 64), [0; 64]);
        assert_eq!(guest.bytes(at[2], 64), (17..=80).collect::<Vec<u8>>());
        assert_eq!(bench.interrupts.take(), [(5, 0x41)]);
        assert_eq!(guest.counted(), [2, 80, 1]);
        bench.turn();
        assert_eq!(bench.engine.visited_queues(), 0, "it is armed again");
        guest.ask(&[(64, true)]);
        assert_eq!(bench.turn(), 1);
    }
}

#[test]
fn guests_that_wait_take_turns() {
    let mut guests = [0, 1, 127].map(|slot| Guest::new(slot, SPLIT));
    let mut bench = Bench::with(&guests.each_ref());
    bench.source().fills_left = 0;
    for _ in 0..8 {
        guests.iter_mut().for_each(|guest| drop(guest.ask(&[(8, true)])));
    }
    bench.turn();
    for _ in 0..12 {
        // The first guest that waits gets the bytes. Its next request finds the source empty again.
        bench.source().fills_left = 1;
        bench.turn();
    }
    assert_eq!(guests.each_ref().map(|guest| guest.counted()[0]), [4; 3]);
}

#[test]
fn a_reset_does_not_wait_for_the_source_and_forgets_the_request() {
    for features in FORMS {
        let (mut guest, mut bench, at) = starved(features);
        guest.shared.request_reset();
        bench.turn();
        assert_eq!(guest.shared.phase(), Phase::Idle);
        bench.source().fills_left = usize::MAX;
        bench.turn();
        assert_eq!(guest.bytes(at[0], 16), [0; 16]);
        guest.start();
        bench.turn();
        assert_eq!(guest.used(), None);
        let at = guest.ask(&[(64, true)])[0];
        assert_eq!(bench.turn(), 1);
        assert_eq!(guest.used(), Some(64));
        assert_eq!(guest.bytes(at, 64), (1..=64).collect::<Vec<u8>>());
        assert_eq!((guest.counted(), guest.shared.counters().stale_tokens.get()), ([1, 64, 1], 0));
    }
}

#[test]
fn a_detachment_does_not_wait_either_and_the_slot_can_be_had_again() {
    for features in FORMS {
        let (guest, mut bench, at) = starved(features);
        assert_eq!(bench.command(Command::Detach { slot: guest.slot }), Reply::Detached(None), "a request was dropped");
        bench.source().fills_left = usize::MAX;
        bench.turn();
        assert_eq!(guest.bytes(at[0], 16), [0; 16]);
        let mut other = Guest::new(guest.slot, features);
        assert_eq!(bench.attach(&other), Reply::Attached);
        bench.turn();
        other.ask(&[(64, true)]);
        assert_eq!(bench.turn(), 1);
        assert_eq!((other.used(), other.counted(), guest.counted()), (Some(64), [1, 64, 0], [0, 0, 1]));
    }
}

#[test]
fn a_reset_of_the_queue_waits_for_the_request() {
    for features in [SPLIT, PACKED] {
        let (mut guest, mut bench, at) = starved(features);
        assert!(guest.shared.reset_queue(0));
        for _ in 0..10 {
            bench.turn();
            assert!(!guest.shared.queue_reset_done(0));
        }
        bench.source().fills_left = usize::MAX;
        bench.turn();
        bench.turn();
        assert!(guest.shared.queue_reset_done(0));
        assert_eq!(guest.bytes(at[0], 16), (1..=16).collect::<Vec<u8>>());
        guest.set_up_queue();
        bench.turn();
        guest.ask(&[(64, true)]);
        assert_eq!(bench.turn(), 1);
        assert_eq!(guest.used(), Some(64));
    }
}
