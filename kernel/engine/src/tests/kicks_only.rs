//! Devices of a guest that starts with firmware: until a reset, their queues are looked at after their kicks only.

use super::{ALL, PACKED, PLAIN};
use crate::control::{Attachment, Command, Reply};
use crate::requests::{Rates, Requests};
use crate::tests::support::guest::{Guest, TX};
use crate::tests::support::{Bench, fine, per_device};
use virtio::config::Features;
use virtio::testing::RING_AREA;

/// Every request mode.
const MODES: [Requests; 3] =
    [Requests::Poll, Requests::Notify, Requests::Adaptive(Rates { kicks: 2, window: 1000, quiet: 10 })];

/// A sender that firmware started, and a receiver.
fn from_firmware(features: Features, requests: Requests, turns: bool) -> (Guest, Guest, Bench) {
    let (a, mut b) = (Guest::new(0, features, 256), Guest::new(1, PLAIN, 256));
    a.shared.serve_after_kicks_only();
    let mut bench = Bench::by(if turns { fine() } else { per_device() }, &[], requests);
    for guest in [&a, &b] {
        let attachment = Attachment { requests, ..guest.attachment(guest.slot) };
        assert_eq!(bench.command(Command::Attach(attachment)), Reply::Attached);
    }
    b.post(200, 2048);
    bench.turn();
    (a, b, bench)
}

/// All bytes of the guest's transmit queue.
fn ring(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; RING_AREA as usize];
    guest.memory.read(u64::from(TX) * RING_AREA, &mut bytes).unwrap();
    bytes
}

/// Fills the pages of a transmit queue with noise, and checks that no turn takes it for requests. Returns the noise.
fn leave_noise(guest: &Guest, bench: &mut Bench) -> Vec<u8> {
    let noise: Vec<u8> = (0..RING_AREA).map(|n| (n * 7 + 3) as u8 | 1).collect();
    guest.memory.write(u64::from(TX) * RING_AREA, &noise).unwrap();
    (0..100).for_each(|_| assert_eq!(bench.turn(), 0));
    noise
}

#[test]
fn a_ring_is_neither_read_nor_written_but_after_its_kick() {
    for (requests, turns) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let (mut a, mut b, mut bench) = from_firmware(PLAIN, requests, turns);
        for round in 1..=20 {
            let message = a.message(b.slot, 60, round);
            assert!(a.send(&message));
            assert!(a.tx.kick_prepare(), "the driver has to notify each time");
            let before = ring(&a);
            (0..5).for_each(|_| assert_eq!(bench.turn(), 0, "{requests:?}"));
            assert_eq!(ring(&a), before, "nothing is written unasked");
            a.shared.kick(TX);
            assert_eq!(bench.turn(), 1);
            assert!(b.receive().is_some());
        }
        // The firmware is gone, and the system uses the ring's pages.
        let noise = leave_noise(&a, &mut bench);
        assert_eq!((ring(&a), a.shared.needs_reset()), (noise, false));
        assert_eq!(a.shared.faults().map(|(_, count)| count).sum::<u64>(), 0);

        // The system's driver resets the device. From then on it is served as configured.
        a.shared.request_reset();
        bench.turn();
        a.start();
        bench.turn();
        bench.turn();
        let message = a.message(b.slot, 60, 0);
        assert!(a.send(&message));
        if a.tx.kick_prepare() {
            a.shared.kick(TX);
        }
        assert_eq!(bench.turn(), 1);
        assert!(requests != Requests::Poll || !a.tx.kick_prepare());
    }
}

#[test]
fn a_request_before_the_device_is_active_is_taken_after_its_kick_only_and_once() {
    for kicked_early in [false, true] {
        let (mut a, mut b, mut bench) = from_firmware(PLAIN, Requests::Poll, true);
        // It starts anew as firmware does, and offers a frame before the engine knows.
        a.shared.request_reset();
        bench.turn();
        a.shared.serve_after_kicks_only();
        a.start();
        let message = a.message(b.slot, 60, 1);
        assert!(a.send(&message));
        if kicked_early {
            a.shared.kick(TX);
        }
        (0..3).for_each(|_| _ = bench.turn());
        assert_eq!(b.receive().is_some(), kicked_early);
        if !kicked_early {
            a.shared.kick(TX);
            assert_eq!(bench.turn(), 1);
            assert!(b.receive().is_some());
        }
        leave_noise(&a, &mut bench);
        assert!(!a.shared.needs_reset());
    }
}

#[test]
fn a_kick_takes_all_that_is_there_however_much() {
    let (mut a, b, mut bench) = from_firmware(PLAIN, Requests::Poll, true);
    for tag in 0..150 {
        let message = a.message(b.slot, 60, tag);
        assert!(a.send(&message));
    }
    a.shared.kick(TX);
    assert_eq!((0..10).map(|_| bench.turn()).sum::<u32>(), 150);
}

#[test]
fn a_driver_with_event_idx_is_served_as_configured() {
    let (mut a, b, mut bench) = from_firmware(ALL, Requests::Poll, true);
    assert_eq!((ALL.contains(Features::RING_PACKED), a.shared.kicks_only()), (PACKED, false));
    let message = a.message(b.slot, 60, 0);
    assert!(a.send(&message));
    assert_eq!(bench.turn(), 1);
}
