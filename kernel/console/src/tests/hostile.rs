//! A driver that breaks a rule of the rings loses its device until it resets the device. A control message that means
//! nothing is counted and has no effect. Other guests lose nothing.

use super::support::{Bench, FORMS, Guest};
use crate::device::{CONTROL_RECEIVE, CONTROL_TRANSMIT, receive_queue, transmit_queue};
use crate::message::{Message, event};
use virtio::fault::Fault;

#[test]
fn a_buffer_of_the_wrong_direction_breaks_the_device() {
    for features in FORMS {
        for (queue, request) in [
            (transmit_queue(0), &[Err(8)][..]),
            (transmit_queue(1), &[Ok(&b"out"[..]), Err(8)]),
            (CONTROL_TRANSMIT, &[Err(8)]),
            (CONTROL_TRANSMIT, &[Ok(&[0; 8][..]), Err(8)]),
            (receive_queue(0), &[Ok(&b"in"[..])]),
            (receive_queue(1), &[Ok(&b"in"[..]), Err(8)]),
            (CONTROL_RECEIVE, &[Ok(&[0; 8][..])]),
        ] {
            let (mut bench, mut guest) = Bench::connected(features, &["a"]);
            // The control queue's buffers of the handshake are used up first.
            guest.port(1).set_open(false);
            while queue == CONTROL_RECEIVE && guest.queues[2].free() < 64 {
                guest.tell(0, event::DEVICE_READY, 1);
                guest.tell(1, event::PORT_READY, 1);
                bench.turn();
                bench.turn();
                guest.messages();
            }
            guest.offer(queue, request);
            guest.tell(1, event::PORT_READY, 1);
            bench.write(&mut guest, 0, b"x");
            bench.write(&mut guest, 1, b"x");
            bench.turn();
            bench.turn();
            assert!(guest.shared.needs_reset(), "queue {queue} {request:?} {features:?}");
            assert_eq!(guest.faults(Fault::Direction), 1);

            guest.shared.request_reset();
            bench.turn();
            assert!(guest.shared.reset_done());
            guest.start();
            bench.turn();
            bench.connect(&mut guest);
            guest.send(1, b"again");
            bench.turn();
            assert_eq!(guest.read(1), b"again");
        }
    }
}

#[test]
fn messages_that_mean_nothing_are_counted_and_have_no_effect() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        let mut refused = 0;
        for id in [0, 1, 2, 3, 31, 0x8000_0000, u32::MAX] {
            for event in [1, 2, 4, 5, 7, 8, 0x7fff, u16::MAX] {
                guest.tell(id, event, 1);
                bench.turn();
                guest.used(CONTROL_TRANSMIT);
                refused += 1;
            }
            if id > 1 {
                guest.tell(id, event::PORT_OPEN, 1);
                guest.tell(id, event::PORT_READY, 1);
                bench.turn();
                refused += 2;
            }
        }
        for len in 1..8 {
            guest.offer(CONTROL_TRANSMIT, &[Ok(&[0; 8][..len])]);
            bench.turn();
            refused += 1;
        }
        assert_eq!(guest.ports.messages.refused.get(), refused);
        bench.turn();
        assert_eq!(guest.messages(), []);
        assert!(guest.ports.all().iter().all(crate::ports::Port::is_guest_open));
        assert!(!guest.shared.needs_reset());
        // A message in pieces, and one that is longer than it must be, are as good as any other.
        let close = Message { id: 1, event: event::PORT_OPEN, value: 0 }.encode();
        guest.offer(CONTROL_TRANSMIT, &[Ok(&close[..1]), Ok(&close[1..5]), Ok(&close[5..])]);
        bench.turn();
        assert!(!guest.port(1).is_guest_open());
        let open = [&Message { id: 1, event: event::PORT_OPEN, value: 1 }.encode()[..], &[9; 100]].concat();
        guest.offer(CONTROL_TRANSMIT, &[Ok(&open)]);
        bench.turn();
        assert!(guest.port(1).is_guest_open());
    }
}

#[test]
fn a_port_that_is_not_ready_cannot_be_opened() {
    for features in FORMS {
        let mut guest = Guest::new(0, features, &["a"]);
        let mut bench = Bench::with(&mut [&mut guest]);
        guest.tell(1, event::PORT_OPEN, 1);
        bench.turn();
        assert!(!guest.port(1).is_guest_open());
        assert_eq!(guest.ports.messages.refused.get(), 1);
        guest.tell(1, event::PORT_READY, 1);
        guest.tell(1, event::PORT_OPEN, 1);
        bench.turn();
        assert!(guest.port(1).is_guest_open());
        // A driver that gives the port up has it open no longer.
        guest.tell(1, event::PORT_READY, 0);
        bench.turn();
        assert!(!guest.port(1).is_guest_open());
    }
}

#[test]
fn a_driver_that_asks_again_and_again_is_answered_and_costs_no_memory() {
    for features in FORMS {
        let mut guest = Guest::new(0, features, &["a", "b"]);
        let mut bench = Bench::with(&mut [&mut guest]);
        for _ in 0..1000 {
            guest.tell(0, event::DEVICE_READY, 1);
            guest.tell(1, event::PORT_READY, 1);
            bench.turn();
            guest.used(CONTROL_TRANSMIT);
        }
        (0..32).for_each(|_| guest.post(CONTROL_RECEIVE, 64));
        bench.turn();
        bench.turn();
        assert_eq!(guest.messages().len(), 4, "three ports and a name");
    }
}

#[test]
fn a_request_that_changes_while_it_waits_costs_only_its_own_guest() {
    for features in FORMS {
        let (mut hostile, mut neighbour) = (Guest::new(1, features, &["a"]), Guest::new(2, features, &["a"]));
        let mut bench = Bench::with(&mut [&mut hostile, &mut neighbour]);
        bench.connect(&mut hostile);
        bench.connect(&mut neighbour);
        hostile.offer(transmit_queue(1), &[Ok(&[1; 4000])]);
        bench.turn();
        // The descriptor's length is now shorter than what was taken of it already.
        let desc = hostile.queues[usize::from(transmit_queue(1))].config.desc;
        hostile.memory.write(desc + 8, &1u32.to_le_bytes()).expect("its ring");
        assert_eq!(hostile.read(1).len(), super::support::OUTPUT);
        neighbour.send(1, b"fine");
        bench.turn();
        assert_eq!((hostile.read(1), neighbour.read(1)), (Vec::new(), b"fine".to_vec()));
        assert_eq!(hostile.used(transmit_queue(1)), 1);
        assert_eq!((hostile.faults(Fault::Buffer), hostile.shared.needs_reset()), (0, false));
    }
}

#[test]
fn a_chain_of_single_bytes_and_one_outside_memory() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        let parts: Vec<[u8; 1]> = (0..60).map(|n| [n]).collect();
        let request: Vec<Result<&[u8], u32>> = parts.iter().map(|part| Ok(&part[..])).collect();
        guest.offer(transmit_queue(1), &request);
        bench.turn();
        assert_eq!(guest.read(1), (0..60).collect::<Vec<u8>>());
        guest.queues[usize::from(transmit_queue(1))].add(&[(1 << 40, 64, false)]).expect("there is room");
        bench.turn();
        assert_eq!(guest.faults(Fault::Buffer), 1);
        assert_eq!(guest.read(1), []);
    }
}
