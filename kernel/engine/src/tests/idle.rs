//! A thousand queues that nobody uses: they cost a turn nothing, and whoever begins to send is served in the next turn.

use crate::backend::MAX_PORTS;
use crate::control::{Attachment, Command, Control, Reply};
use crate::engine::Engine;
use crate::net::Net;
use crate::requests::Requests;
use crate::schedule::{Fine, Limits, PerDevice, Schedule, Share};
use crate::shared::MAX_QUEUES;
use crate::testing::{Guest, Idle, Recorder, SPLIT};
use crate::uplink::NoNic;

const QUEUES: usize = 1000;
const IDLE: usize = QUEUES.div_ceil(MAX_QUEUES);
const LIMITS: Limits = Limits { requests: 256, bytes: 256 << 10, quantum: 1000, least: 16, stuck: 1 << 40 };

type Switch<S> = Engine<Net<NoNic>, S, &'static Recorder>;

fn attach<S: Schedule>(engine: &mut Switch<S>, port: usize, device: Attachment) {
    engine.control().submit(Command::Attach(device)).expect("the slot is free");
    engine.turn(1);
    assert_eq!(engine.control().reply(), Some(Reply::Attached), "port {port}");
}

/// Two guests that are polled at the first and the last port, and between them idle ones, which notify.
fn crowd<S: Schedule>(schedule: S) -> (Box<Switch<S>>, [Guest; 2], Vec<Idle>) {
    let control = Box::leak(Box::new(Control::new()));
    let mut engine = Box::new(Engine::new(control, Net::new(7, 1 << 40), schedule, &*Box::leak(Box::default())));
    let guests = [1, 2].map(|number| Guest::new(number, SPLIT, 256, 1500));
    let idle: Vec<_> = (0..IDLE as u8).map(Idle::new).collect();
    let polled = guests.iter().zip([0, MAX_PORTS - 1]).map(|(g, port)| (port, g.shared, &g.memory, Requests::Poll));
    let others = idle.iter().zip(1..).map(|(g, port)| (port, g.shared, &g.memory, Requests::Notify));
    for (port, shared, memory, requests) in polled.chain(others) {
        let (memory, share) = (memory.clone(), Share::of_guest(port));
        attach(&mut engine, port, Attachment { port, number: port, shared, memory, requests, share, state: None });
    }
    while engine.visited_queues() > 2 {
        engine.turn(1);
    }
    (engine, guests, idle)
}

/// The engine's work in a turn in which the first guest's frames to the second wait.
fn stream<S: Schedule>(engine: &mut Switch<S>, [from, to]: &mut [Guest; 2]) -> u32 {
    let frame = from.frame(to.mac, 60, 1);
    to.post(1, &[2048]);
    assert!(from.send(&frame, &[]));
    let moved = engine.turn(1);
    assert_eq!(to.receive(), Some(frame));
    moved
}

fn serves_at_once(schedule: impl Schedule) {
    let (mut engine, mut guests, mut idle) = crowd(schedule);
    guests[1].post(2, &[2048]);
    for (port, guest) in idle.iter_mut().enumerate() {
        for queue in Idle::transmit_queues() {
            assert!(guest.send(queue, guests[1].mac), "the queue is armed");
            assert_eq!(engine.turn(1), 1, "queue {queue} of guest {port} has waited longer than a turn");
            assert!(guests[1].receive().is_some());
            guests[1].post(1, &[2048]);
            // It is found empty, and armed.
            engine.turn(1);
            assert_eq!(engine.visited_queues(), 2);
        }
    }
}

#[test]
fn the_first_frame_on_any_of_a_thousand_idle_queues_is_taken_in_the_turn_after_its_kick() {
    serves_at_once(Fine::<{ crate::schedule::QUEUES }>::new(LIMITS));
    serves_at_once(PerDevice::new(64));
}

#[test]
fn so_it_is_while_others_stream() {
    let (mut engine, mut guests, mut idle) = crowd(Fine::<{ crate::schedule::QUEUES }>::new(LIMITS));
    guests[1].post(64, &[2048]);
    for guest in &mut idle {
        for queue in Idle::transmit_queues() {
            for _ in 0..3 {
                assert_eq!(stream(&mut engine, &mut guests), 1);
            }
            assert_eq!(engine.visited_queues(), 2, "idle queues are armed");
            let frame = guests[0].frame(guests[1].mac, 60, 2);
            guests[0].send(&frame, &[]);
            assert!(guest.send(queue, guests[1].mac));
            engine.turn(1);
            let first = guests[1].receive().expect("a frame");
            assert_eq!(first[6..12], guest.mac, "the stream came first");
            guests[1].post(2, &[2048]);
            engine.turn(1);
            assert_eq!(guests[1].receive(), Some(frame));
        }
    }
}

#[test]
fn all_of_them_at_once_are_served_and_rest_again() {
    let (mut engine, mut guests, mut idle) = crowd(Fine::<{ crate::schedule::QUEUES }>::new(LIMITS));
    let sent = idle.len() * Idle::transmit_queues().count();
    for guest in &mut idle {
        for queue in Idle::transmit_queues() {
            assert!(guest.send(queue, guests[1].mac));
        }
    }
    let mut received = 0;
    for _ in 0..4 * sent {
        guests[1].post(2, &[2048]);
        engine.turn(1);
        received += core::iter::from_fn(|| guests[1].receive()).count();
    }
    assert_eq!((received, engine.visited_queues()), (sent, 2));
}
