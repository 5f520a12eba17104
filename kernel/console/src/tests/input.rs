//! Input: from the control core to the guest.

use super::support::{Bench, FORMS, Guest, INPUT};
use crate::message::event;

#[test]
fn input_goes_into_the_buffers_of_its_port_with_an_interrupt() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        for port in [0, 1] {
            (0..4).for_each(|_| guest.post_input(port, 4));
            bench.interrupts.take();
            assert_eq!(bench.write(&mut guest, port, b"0123456"), 7);
            assert_eq!(bench.turn(), 2, "two buffers");
            assert_eq!(bench.interrupts.take(), [(3, 0x41 + u32::from(crate::device::receive_queue(port)) as u8)]);
            assert_eq!((guest.input(port), guest.input(port)), (Some(b"0123".into()), Some(b"456".into())));
            assert_eq!(guest.input(port), None);
            assert_eq!(guest.port(port).counters.input_bytes.get(), 7);
        }
    }
}

#[test]
fn input_is_bounded_and_waits_for_buffers() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &[]);
        assert_eq!(bench.write(&mut guest, 0, &[7; 100]), INPUT);
        for _ in 0..10 {
            assert_eq!(bench.turn(), 0);
        }
        assert_eq!(bench.write(&mut guest, 0, &[8; 100]), 0);
        guest.post_input(0, 10);
        bench.turn();
        assert_eq!(guest.input(0), Some(vec![7; 10]));
        assert_eq!(bench.write(&mut guest, 0, &[8; 100]), 10);
        (0..8).for_each(|_| guest.post_input(0, 4));
        bench.turn();
        bench.turn();
        let got: Vec<u8> = core::iter::from_fn(|| guest.input(0)).flatten().collect();
        assert_eq!(got, [[7; 6].as_slice(), &[8; 10]].concat());
    }
}

#[test]
fn input_waits_until_the_guest_opens_the_port() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        guest.tell(1, event::PORT_OPEN, 0);
        bench.turn();
        guest.post_input(1, 64);
        bench.write(&mut guest, 1, b"later");
        for _ in 0..5 {
            bench.turn();
        }
        assert_eq!(guest.input(1), None);
        guest.tell(1, event::PORT_OPEN, 1);
        bench.turn();
        bench.turn();
        assert_eq!(guest.input(1), Some(b"later".into()));
    }
}

#[test]
fn guests_without_input_cost_a_turn_nothing() {
    let (mut first, mut second) = (Guest::new(1, FORMS[0], &[]), Guest::new(127, FORMS[0], &[]));
    let mut bench = Bench::with(&mut [&mut first, &mut second]);
    bench.connect(&mut first);
    bench.connect(&mut second);
    second.post_input(0, 8);
    bench.write(&mut second, 0, b"second");
    assert_eq!(bench.turn(), 1);
    assert_eq!((first.input(0), second.input(0)), (None, Some(b"second".into())));
    bench.turn();
    // Only the two transmit queues are looked at; the control queues are armed.
    assert_eq!(bench.engine.visited_queues(), 2);
}
