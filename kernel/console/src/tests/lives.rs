//! Reset, detachment, a second life, and a device that is resumed.

use super::support::{Bench, FORMS, Guest, OUTPUT};
use crate::device::transmit_queue;
use crate::message::event;
use engine::control::{Command, Reply};

#[test]
fn a_reset_does_not_wait_for_a_reader_and_drops_input_of_the_driver_that_is_gone() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        let (first, second) = ([1; OUTPUT], [2; OUTPUT]);
        guest.send(1, &first);
        guest.send(1, &second);
        bench.turn();
        assert_eq!(bench.write(&mut guest, 1, b"old"), 3);
        bench.turn();
        guest.shared.request_reset();
        bench.turn();
        assert!(guest.shared.reset_done());
        assert!(!guest.port(1).is_guest_open());
        guest.start();
        bench.turn();
        bench.connect(&mut guest);
        guest.post_input(1, 16);
        bench.write(&mut guest, 1, b"new");
        bench.turn();
        assert_eq!(guest.input(1), Some(b"new".into()));
        assert_eq!(guest.read(1), first, "what was taken before stays");
        guest.send(1, b"third");
        bench.turn();
        assert_eq!(guest.read(1), b"third");
        assert_eq!(guest.shared.counters().stale_tokens.get(), 0);
    }
}

#[test]
fn half_of_a_request_taken_before_a_reset_is_not_counted_for_the_next_one() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        guest.send(1, &[1; OUTPUT + 10]);
        bench.turn();
        guest.shared.request_reset();
        bench.turn();
        guest.start();
        bench.turn();
        bench.connect(&mut guest);
        assert_eq!(guest.read(1), [1; OUTPUT]);
        guest.send(1, b"whole");
        bench.turn();
        assert_eq!(guest.read(1), b"whole");
    }
}

#[test]
fn a_detachment_does_not_wait_and_the_next_life_has_new_rings() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        (0..3).for_each(|_| guest.send(1, &[1; OUTPUT]));
        bench.turn();
        assert!(matches!(bench.command(Command::Detach { slot: 3 }), Reply::Detached(Some(_))));
        assert_eq!(guest.used(transmit_queue(1)), 1);
        guest.shared.restart();
        guest.ports.restart();
        guest.start();
        assert_eq!(bench.attach(&mut guest, None), Reply::Attached);
        bench.turn();
        assert!(!guest.port(1).is_guest_open());
        bench.connect(&mut guest);
        guest.send(1, b"second life");
        bench.turn();
        assert_eq!(guest.read(1), b"second life");
    }
}

#[test]
fn a_resumed_device_goes_on_and_its_driver_learns_what_was_opened_or_closed_meanwhile() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 3 }) else {
            panic!("nothing is in flight")
        };
        guest.port(1).set_open(false);
        assert_eq!(bench.attach(&mut guest, Some(state)), Reply::Attached);
        bench.turn();
        bench.turn();
        assert!(guest.port(0).is_guest_open() && guest.port(1).is_guest_open());
        let told = guest.messages();
        assert!(told.contains(&(1, event::PORT_OPEN, 0, String::new())), "{told:?}");
        guest.send(0, b"still here");
        guest.post_input(0, 8);
        bench.write(&mut guest, 0, b"me too");
        bench.turn();
        assert_eq!((guest.read(0), guest.input(0)), (b"still here".to_vec(), Some(b"me too".into())));
    }
}

#[test]
fn a_port_that_was_closed_and_opened_again_between_two_looks_has_another_opening() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a", "b"]);
        let openings = |guest: &Guest| [0, 1, 2].map(|port| guest.port(port).guest_opening());
        assert_eq!(openings(&guest), [Some(1); 3]);
        // All messages are handled in one turn, so nobody can have seen the port closed.
        guest.tell(1, event::PORT_OPEN, 0);
        guest.tell(1, event::PORT_OPEN, 1);
        bench.turn();
        assert_eq!(openings(&guest), [Some(1), Some(2), Some(1)]);
        // It is open already: a repeated message is no opening.
        guest.tell(1, event::PORT_OPEN, 1);
        guest.tell(1, event::PORT_READY, 1);
        bench.turn();
        assert_eq!(openings(&guest), [Some(1), Some(2), Some(1)]);
        guest.tell(1, event::PORT_OPEN, 0);
        bench.turn();
        assert_eq!(openings(&guest), [Some(1), None, Some(1)]);
        // The driver starts again without a reset of the device.
        guest.tell(0, event::DEVICE_READY, 1);
        (0..3).for_each(|port| guest.tell(port, event::PORT_READY, 1));
        (1..3).for_each(|port| guest.tell(port, event::PORT_OPEN, 1));
        bench.turn();
        assert_eq!(openings(&guest), [None, Some(3), Some(2)]);
    }
}

#[test]
fn openings_are_counted_over_resets_detachments_and_lives() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        assert_eq!(guest.port(1).guest_opening(), Some(1));
        guest.shared.request_reset();
        bench.turn();
        assert_eq!(guest.port(1).guest_opening(), None);
        guest.start();
        bench.turn();
        bench.connect(&mut guest);
        assert_eq!(guest.port(1).guest_opening(), Some(2));
        let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 3 }) else {
            panic!("nothing is in flight")
        };
        // A device that is resumed has the port open as before: this is the same opening.
        assert_eq!(bench.attach(&mut guest, Some(state)), Reply::Attached);
        bench.turn();
        assert_eq!(guest.port(1).guest_opening(), Some(2));
        assert!(matches!(bench.command(Command::Detach { slot: 3 }), Reply::Detached(Some(_))));
        guest.shared.restart();
        guest.ports.restart();
        assert_eq!(guest.port(1).guest_opening(), None);
        guest.start();
        assert_eq!(bench.attach(&mut guest, None), Reply::Attached);
        bench.turn();
        bench.connect(&mut guest);
        assert_eq!(guest.port(1).guest_opening(), Some(3));
    }
}
