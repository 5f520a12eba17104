//! Interrupts, of which a turn raises one for each queue.

use super::{ALL, PLAIN};
use crate::requests::Requests;
use crate::tests::support::guest::Guest;
use crate::tests::support::{Bench, two};

/// Sends a message on a queue that is polled.
fn send(a: &mut Guest, b: &Guest) -> bool {
    let message = a.message(b.slot, 60, 0);
    assert!(a.send(&message));
    a.tx.kick_prepare()
}

#[test]
fn all_completions_of_a_turn_raise_one_interrupt_for_each_queue() {
    for features in [ALL, PLAIN] {
        for messages in [1, 2, 64] {
            let (mut a, b, mut bench) = two(features, Requests::Poll);
            for _ in 0..messages {
                send(&mut a, &b);
            }
            assert_eq!(bench.turn(), messages);
            let mut sent = bench.interrupts.take();
            sent.sort_unstable();
            assert_eq!(sent, [(100, a.vector(2)), (101, b.vector(1))], "{features:?}, {messages} messages");
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
    for message in 0..20 {
        send(&mut a, &b);
        bench.turn();
        let wanted = if message == 9 { vec![(101, b.vector(1))] } else { vec![] };
        assert_eq!(bench.interrupts.take(), wanted, "message {message}");
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

#[test]
fn masked_interrupts_wait_and_suppressed_ones_are_not_sent() {
    let (mut a, mut b) = (Guest::new(0, ALL, 64), Guest::new(1, PLAIN, 64));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(8, 1526);
    a.tx.disable_interrupts();
    b.rx.disable_interrupts();
    let message = a.message(b.slot, 60, 0);
    a.send(&message);
    bench.turn();
    assert_eq!(bench.interrupts.take(), []);
    assert_eq!(a.shared.counters().interrupts_suppressed.get(), 1);
    b.rx.enable_interrupts();
    b.shared.msix.write(16 + 12, 4, 1);
    a.send(&message);
    bench.turn();
    assert_eq!(bench.interrupts.take(), []);
    assert_eq!(b.shared.counters().interrupts_masked.get(), 1);
    b.shared.msix.write(16 + 12, 4, 0);
    let late: Vec<_> = b.shared.msix.take_unmasked().map(|m| m.decode().unwrap().vector).collect();
    assert_eq!(late, [b.vector(1)]);
}

#[test]
fn a_message_that_no_device_may_send_is_counted_and_not_delivered() {
    let (mut a, mut b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(8, 1526);
    b.shared.msix.write(16 + 8, 4, 0x41 | 4 << 8); // NMI
    a.tx.disable_interrupts();
    let message = a.message(b.slot, 60, 0);
    a.send(&message);
    bench.turn();
    assert_eq!(b.receive(), Some(message));
    assert_eq!(bench.interrupts.take(), []);
    assert_eq!(b.shared.counters().interrupts_refused.get(), 1);
}
