//! Receive queues of a guest that starts with firmware: the ring is read after its kicks only.

use super::PLAIN;
use crate::features::Features;
use crate::tests::support::Bench;
use crate::testing::Guest;
use engine::requests::Requests;
use engine::schedule::{Chosen, PerDevice};
use virtio::testing::{RING_AREA, USED};

/// The receive queue.
const RX: u16 = 0;
/// Bytes of a buffer.
const BUFFER: u32 = 2048;

fn noise(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + 3) as u8 | 1).collect()
}

/// The ring of the receive queue.
fn ring(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; RING_AREA as usize];
    guest.memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn buffers_are_taken_from_the_ring_at_a_kick_and_it_is_not_read_again() {
    let (mut a, mut b) = (Guest::new(1, PLAIN, 256, 1500), Guest::new(2, PLAIN, 256, 1500));
    b.shared.serve_after_kicks_only();
    let mut bench = Bench::by(Chosen::PerDevice(PerDevice::new(64)), &[&a, &b], Requests::Poll);
    let (to, drops) = (b.mac, b.counters());
    let mut send = |bench: &mut Bench, tag| {
        let frame = a.frame(to, 60, tag);
        assert!(a.send(&frame, &[]));
        bench.turn();
        frame
    };
    b.post(3, &[12, BUFFER]);
    assert!(b.rx.kick_prepare(), "the driver has to notify");
    let before = ring(&b);
    send(&mut bench, 1);
    assert_eq!((b.receive(), drops.drops.rx_no_buffer.get()), (None, 1));
    assert_eq!(ring(&b), before, "nothing is read or written before the kick");

    b.shared.kick(RX);
    bench.turn();
    let frame = send(&mut bench, 2);
    assert_eq!(b.receive(), Some(frame));

    // Noise where the buffers were offered: those of the kick are known, and the ring is not read.
    b.memory.write(0, &noise(USED)).unwrap();
    let frame = send(&mut bench, 3);
    assert_eq!(b.receive(), Some(frame));
    send(&mut bench, 4);
    assert!(b.receive().is_some());

    // No buffer is left, and the whole ring is noise.
    b.memory.write(0, &noise(RING_AREA)).unwrap();
    for tag in 5..50 {
        send(&mut bench, tag);
    }
    assert_eq!((ring(&b), drops.drops.rx_no_buffer.get()), (noise(RING_AREA), 46));
    assert_eq!((b.shared.needs_reset(), b.shared.faults().map(|(_, count)| count).sum::<u64>()), (false, 0));

    // The system's driver resets the device. From then on buffers need no kick.
    b.shared.request_reset();
    bench.turn();
    b.start();
    bench.turn();
    b.post(1, &[BUFFER]);
    let frame = send(&mut bench, 60);
    assert_eq!(b.receive(), Some(frame));
}

#[test]
fn a_buffer_outside_of_memory_is_found_at_the_kick_and_costs_that_guest_its_device() {
    let (mut a, mut b) = (Guest::new(1, PLAIN, 256, 1500), Guest::new(2, PLAIN, 256, 1500));
    b.shared.serve_after_kicks_only();
    let mut bench = Bench::by(Chosen::PerDevice(PerDevice::new(64)), &[&a, &b], Requests::Poll);
    assert!(b.rx.add(&[(1 << 40, BUFFER, true)]).is_some());
    bench.turn();
    assert!(!b.shared.needs_reset(), "it is not read before the kick");
    b.shared.kick(RX);
    bench.turn();
    assert!(b.shared.needs_reset());
    let frame = a.frame(b.mac, 60, 1);
    assert!(a.send(&frame, &[]));
    bench.turn();
    assert_eq!((a.tx.used_index(), a.shared.needs_reset()), (1, false));
}

#[test]
fn more_buffers_than_are_held_are_taken_at_later_kicks_in_their_order() {
    let (mut a, mut b) = (Guest::new(1, PLAIN, 256, 1500), Guest::new(2, PLAIN, 256, 1500));
    b.shared.serve_after_kicks_only();
    let mut bench = Bench::by(Chosen::PerDevice(PerDevice::new(64)), &[&a, &b], Requests::Poll);
    assert_eq!(b.post(200, &[BUFFER]), 200);
    for tag in 0..200 {
        b.shared.kick(RX);
        bench.turn();
        let frame = a.frame(b.mac, 60, tag);
        assert!(a.send(&frame, &[]));
        bench.turn();
        assert_eq!(b.receive(), Some(frame), "{tag}");
    }
    assert_eq!(b.counters().drops.rx_no_buffer.get(), 0);
}

#[test]
fn a_queue_whose_buffers_are_held_can_be_reset_and_set_up_again() {
    let features = PLAIN.union(Features::RING_RESET);
    let (mut a, mut b) = (Guest::new(1, PLAIN, 256, 1500), Guest::new(2, features, 256, 1500));
    b.shared.serve_after_kicks_only();
    let mut bench = Bench::by(Chosen::PerDevice(PerDevice::new(64)), &[&a, &b], Requests::Poll);
    assert_eq!(b.post(5, &[BUFFER]), 5);
    b.shared.kick(RX);
    bench.turn();
    b.resize(false, 128, || {
        bench.turn();
    });
    b.post(1, &[BUFFER]);
    b.shared.kick(RX);
    bench.turn();
    let frame = a.frame(b.mac, 60, 1);
    assert!(a.send(&frame, &[]));
    bench.turn();
    assert_eq!(b.receive(), Some(frame));
}
