//! A thousand queues that nobody uses: they cost a turn nothing, and whoever begins to send is served in the next turn.

use virtio::config::{Features, MAX_QUEUES};

use super::support::guest::Guest;
use super::support::idle::Idle;
use super::support::relay::Relay;
use crate::control::{Attachment, Command, Control, Reply};
use crate::engine::Engine;
use crate::schedule::{Fine, Limits, PerDevice, Schedule};
use crate::slots::MAX_SLOTS;
use crate::testing::Recorder;

const SPLIT: Features = Features::all().difference(Features::RING_PACKED);
const QUEUES: usize = 1000;
const IDLE: usize = QUEUES.div_ceil(MAX_QUEUES);
const LIMITS: Limits = Limits { requests: 256, bytes: 256 << 10, quantum: 1000, least: 16, stall: 1 << 40 };

type Busy<S> = Engine<Relay, S, &'static Recorder>;

fn attach<S: Schedule>(engine: &mut Busy<S>, slot: usize, device: Attachment<()>) {
    engine.control().submit(Command::Attach(device)).expect("the slot is free");
    engine.turn(1);
    assert_eq!(engine.control().reply(), Some(Reply::Attached), "slot {slot}");
}

/// Two guests that are polled at the first and the last slot, and between them idle ones, which notify.
fn crowd<S: Schedule>(schedule: S) -> (Box<Busy<S>>, [Guest; 2], Vec<Idle>) {
    let control = Box::leak(Box::new(Control::new()));
    let mut engine = Box::new(Engine::new(control, Relay::default(), schedule, &*Box::leak(Box::default())));
    let guests = [0, MAX_SLOTS - 1].map(|slot| Guest::new(slot, SPLIT, 256));
    let idle: Vec<_> = (1..=IDLE).map(|slot| Idle::new(slot, SPLIT)).collect();
    let polled = guests.iter().map(|guest| guest.attachment(guest.slot));
    let others = idle.iter().map(Idle::attachment);
    for attachment in polled.chain(others) {
        attach(&mut engine, attachment.slot, attachment);
    }
    while engine.visited_queues() > 2 {
        engine.turn(1);
    }
    (engine, guests, idle)
}

/// The engine's work in a turn in which the first guest's messages to the second wait.
fn stream<S: Schedule>(engine: &mut Busy<S>, [from, to]: &mut [Guest; 2]) -> u32 {
    let message = from.message(to.slot, 60, 1);
    to.post(1, 2048);
    assert!(from.send(&message));
    let moved = engine.turn(1);
    assert_eq!(to.receive(), Some(message));
    moved
}

fn serves_at_once(schedule: impl Schedule) {
    let (mut engine, mut guests, mut idle) = crowd(schedule);
    guests[1].post(2, 2048);
    for (slot, guest) in idle.iter_mut().enumerate() {
        for queue in Idle::transmit_queues() {
            assert!(guest.send(queue, guests[1].slot), "the queue is armed");
            assert_eq!(engine.turn(1), 1, "queue {queue} of guest {slot} has waited longer than a turn");
            assert!(guests[1].receive().is_some());
            guests[1].post(1, 2048);
            // It is found empty, and armed.
            engine.turn(1);
            assert_eq!(engine.visited_queues(), 2);
        }
    }
}

#[test]
fn the_first_message_on_any_of_a_thousand_idle_queues_is_taken_in_the_turn_after_its_kick() {
    serves_at_once(Fine::<{ crate::schedule::QUEUES }>::new(LIMITS));
    serves_at_once(PerDevice::new(64));
}

#[test]
fn so_it_is_while_others_stream() {
    let (mut engine, mut guests, mut idle) = crowd(Fine::<{ crate::schedule::QUEUES }>::new(LIMITS));
    guests[1].post(64, 2048);
    for guest in &mut idle {
        for queue in Idle::transmit_queues() {
            for _ in 0..3 {
                assert_eq!(stream(&mut engine, &mut guests), 1);
            }
            assert_eq!(engine.visited_queues(), 2, "idle queues are armed");
            let message = guests[0].message(guests[1].slot, 60, 2);
            guests[0].send(&message);
            assert!(guest.send(queue, guests[1].slot));
            engine.turn(1);
            let first = guests[1].receive().expect("a message");
            assert_eq!(usize::from(first[1]), guest.slot, "the stream came first");
            guests[1].post(2, 2048);
            engine.turn(1);
            assert_eq!(guests[1].receive(), Some(message));
        }
    }
}

#[test]
fn all_of_them_at_once_are_served_and_rest_again() {
    let (mut engine, mut guests, mut idle) = crowd(Fine::<{ crate::schedule::QUEUES }>::new(LIMITS));
    let sent = idle.len() * Idle::transmit_queues().count();
    for guest in &mut idle {
        for queue in Idle::transmit_queues() {
            assert!(guest.send(queue, guests[1].slot));
        }
    }
    let mut received = 0;
    for _ in 0..4 * sent {
        guests[1].post(2, 2048);
        engine.turn(1);
        received += core::iter::from_fn(|| guests[1].receive()).count();
    }
    assert_eq!((received, engine.visited_queues()), (sent, 2));
}
