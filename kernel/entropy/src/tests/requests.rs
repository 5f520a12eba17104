//! Requests of a driver that keeps to the rules.

use super::support::{Bench, FORMS, Guest};
use crate::backend::MAX_BYTES;
use crate::device;
use virtio::config::Features;

/// The `count` bytes that the source gives after its first `before` bytes.
fn given(before: usize, count: usize) -> Vec<u8> {
    (before..before + count).map(|n| (n % 250) as u8 + 1).collect()
}

#[test]
fn a_request_is_filled_at_once_and_announced_by_an_interrupt() {
    for features in FORMS {
        let mut guest = Guest::new(3, features);
        let mut bench = Bench::with(&[&guest]);
        bench.interrupts.take();
        for n in 0..40 {
            guest.queue.enable_interrupts();
            let at = guest.ask(&[(64, true)])[0];
            assert_eq!(bench.turn(), 1);
            assert_eq!(guest.used(), Some(64));
            assert_eq!(guest.bytes(at, 64), given(64 * n, 64), "{features:?}");
            assert_eq!(bench.interrupts.take(), [(3, 0x41)]);
            assert_eq!(bench.turn(), 0);
        }
        assert_eq!(guest.counted(), [40, 40 * 64, 0]);
        assert_eq!(guest.shared.counters().kicks.get(), 40, "its queue is armed between two requests");
        assert_eq!(bench.engine.visited_queues(), 0);
    }
}

#[test]
fn a_request_gets_no_more_than_its_buffers_hold_and_no_more_than_the_limit() {
    for features in FORMS {
        let mut guest = Guest::new(0, features);
        let mut bench = Bench::with(&[&guest]);
        let mut before = 0;
        for (buffers, written) in [
            (&[1][..], &[1][..]),
            (&[63], &[63]),
            (&[4096], &[MAX_BYTES]),
            (&[10, 20, 100], &[10, 20, 34]),
            (&[64, 8], &[64, 0]),
            (&[1, 1, 1], &[1, 1, 1]),
        ] {
            let request: Vec<_> = buffers.iter().map(|&len| (len, true)).collect();
            let at = guest.ask(&request);
            assert_eq!(bench.turn(), 1);
            let all: usize = written.iter().sum();
            assert_eq!(guest.used(), Some(all as u32));
            for ((gpa, &len), &written) in at.into_iter().zip(buffers).zip(written) {
                let mut expected = given(before, written);
                expected.resize(len as usize, 0);
                assert_eq!(guest.bytes(gpa, len as usize), expected, "{buffers:?} {features:?}");
                before += written;
            }
            bench.turn();
        }
    }
}

#[test]
fn all_requests_of_a_full_queue_are_served_in_their_order() {
    for features in FORMS {
        let mut guest = Guest::new(0, features);
        let mut bench = Bench::with(&[&guest]);
        let at: Vec<u64> = (0..16).map(|_| guest.ask(&[(8, true)])[0]).collect();
        assert_eq!(bench.turn(), 16);
        for (n, gpa) in at.into_iter().enumerate() {
            assert_eq!(guest.used(), Some(8));
            assert_eq!(guest.bytes(gpa, 8), given(8 * n, 8));
        }
    }
}

#[test]
fn the_device_offers_one_queue_and_nothing_that_is_its_own() {
    let device = device::config();
    assert_eq!((device.device_type, device.queues, device.config_len), (4, 1, 0));
    let features = Features::from_bits(device.features).expect("features of the ring and the transport alone");
    assert!(features.contains(Features::VERSION_1) && !features.contains(Features::RING_PACKED));
}
