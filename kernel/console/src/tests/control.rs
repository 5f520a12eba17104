//! The handshake: ports are announced, named, opened and closed.

use super::support::{Bench, FORMS, Guest};
use crate::device::{CONTROL_RECEIVE, MAX_PORTS};
use crate::message::event::{CONSOLE_PORT, DEVICE_READY, PORT_ADD, PORT_NAME, PORT_OPEN, PORT_READY};

fn none() -> String {
    String::new()
}

#[test]
fn ports_are_announced_and_each_gets_its_name_once_the_driver_is_ready_for_it() {
    for features in FORMS {
        let mut guest = Guest::new(1, features, &["commands", "trace"]);
        let mut bench = Bench::with(&mut [&mut guest]);
        (0..16).for_each(|_| guest.post(CONTROL_RECEIVE, 64));
        bench.turn();
        assert_eq!(guest.messages(), [], "nothing before the driver is ready");
        guest.tell(u32::MAX, DEVICE_READY, 1);
        bench.turn();
        bench.turn();
        assert_eq!(guest.messages(), [0, 1, 2].map(|id| (id, PORT_ADD, 1, none())));
        guest.tell(2, PORT_READY, 1);
        guest.tell(0, PORT_READY, 1);
        bench.turn();
        bench.turn();
        let expected = [(0, CONSOLE_PORT, 1, none()), (2, PORT_NAME, 1, "trace".into()), (0, PORT_OPEN, 1, none())];
        assert_eq!(guest.messages(), expected, "port 1 is not ready yet, and nobody has opened port 2");
        assert!(!guest.port(0).is_guest_open());
        guest.tell(0, PORT_OPEN, 1);
        bench.turn();
        assert!(guest.port(0).is_guest_open());
        assert!(!guest.port(0).is_used(), "Linux opens it even if nothing uses it");
        guest.send(0, b"x");
        bench.turn();
        assert!(guest.port(0).is_used());
        assert_eq!((guest.ports.messages.received.get(), guest.ports.messages.sent.get()), (4, 6));
    }
}

#[test]
fn the_driver_is_told_when_the_control_core_opens_or_closes_a_port() {
    for features in FORMS {
        let mut guest = Guest::new(1, features, &["commands"]);
        let mut bench = Bench::with(&mut [&mut guest]);
        (0..16).for_each(|_| guest.post(CONTROL_RECEIVE, 64));
        guest.port(1).set_open(true);
        bench.bell.ring(1);
        bench.turn();
        guest.tell(0, DEVICE_READY, 1);
        guest.tell(1, PORT_READY, 1);
        for _ in 0..4 {
            bench.turn();
        }
        guest.messages();
        for open in [false, true, false] {
            guest.port(1).set_open(open);
            bench.turn();
            assert_eq!(guest.messages(), [], "not before the bell");
            bench.bell.ring(1);
            bench.turn();
            assert_eq!(guest.messages(), [(1, PORT_OPEN, u16::from(open), none())]);
        }
        // Opened and closed again before the engine looked: the driver knows it as closed already.
        guest.port(1).set_open(true);
        guest.port(1).set_open(false);
        bench.bell.ring(1);
        bench.turn();
        assert_eq!(guest.messages(), []);
    }
}

#[test]
fn messages_wait_for_buffers_and_are_sent_when_there_are_some() {
    for features in FORMS {
        let mut guest = Guest::new(1, features, &["a", "b"]);
        let mut bench = Bench::with(&mut [&mut guest]);
        guest.tell(0, DEVICE_READY, 1);
        for _ in 0..5 {
            bench.turn();
        }
        assert_eq!(guest.ports.messages.sent.get(), 0);
        for id in 0..MAX_PORTS as u32 {
            guest.post(CONTROL_RECEIVE, 8);
            bench.turn();
            assert_eq!(guest.messages(), [(id, PORT_ADD, 1, none())]);
        }
        guest.tell(1, PORT_READY, 1);
        bench.turn();
        // A buffer without room for the name is given back. The message waits for the next one.
        guest.post(CONTROL_RECEIVE, 8);
        bench.turn();
        assert_eq!(guest.taken(CONTROL_RECEIVE), Some(Vec::new()));
        assert_eq!(guest.ports.messages.too_small.get(), 1);
        guest.post(CONTROL_RECEIVE, 9);
        bench.turn();
        assert_eq!(guest.messages(), [(1, PORT_NAME, 1, "a".into())]);
    }
}

#[test]
fn without_multiport_there_is_only_the_console_and_it_is_open() {
    for features in FORMS {
        let mut guest = Guest::with(1, features.bits(), &["a"]);
        let mut bench = Bench::with(&mut [&mut guest]);
        assert!(guest.port(0).is_guest_open() && !guest.port(1).is_guest_open());
        guest.send(0, b"hello");
        guest.post_input(0, 64);
        bench.write(&mut guest, 0, b"world");
        bench.turn();
        assert_eq!((guest.read(0), guest.input(0)), (b"hello".to_vec(), Some(b"world".to_vec())));
    }
}
