//! Frames over rings that are resized while the device runs (virtio 1.3 2.6.1), as Linux does it.

use super::{ALL, PACKED};
use crate::testing::Guest;
use crate::tests::support::Bench;
use engine::requests::Requests;

/// Sends a frame by whatever way and says whether it came.
fn passes(a: &mut Guest, b: &mut Guest, turn: &mut impl FnMut()) -> bool {
    let frame = a.frame(b.mac, 60, 3);
    assert!(a.send(&frame, &[]));
    if a.tx.kick_prepare() {
        a.shared.kick(1);
    }
    turn();
    b.receive().is_some_and(|received| received == frame)
}

#[test]
fn frames_pass_over_resized_rings_while_the_other_way_goes_on() {
    for requests in [Requests::Poll, Requests::Notify] {
        let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
        let mut bench = Bench::with_requests(&[&a, &b], requests);
        b.post(200, &[2048]);
        bench.turn();
        bench.turn();
        let mut turn = || {
            bench.turn();
            bench.turn();
        };
        a.post(100, &[2048]);
        let mut sizes = [64, 256, 8, 1, 128].into_iter().filter(|&size| PACKED || size > 1);
        for _ in 0..4 {
            let size = sizes.next().unwrap();
            // Frames that wait are the driver's to take back.
            let waiting = a.frame(b.mac, 60, 9);
            assert!(a.send(&waiting, &[]));
            a.resize(true, size, &mut turn);
            while b.receive().is_some() {}
            for _ in 0..3 * size {
                b.post(1, &[2048]);
                assert!(passes(&mut a, &mut b, &mut turn), "transmit queue of {size}, {requests:?}");
            }
            b.resize(false, size, &mut turn);
            assert!(!passes(&mut a, &mut b, &mut turn), "no buffer is left from before");
            for _ in 0..3 * size {
                b.post(1, &[2048]);
                assert!(passes(&mut a, &mut b, &mut turn), "receive queue of {size}, {requests:?}");
            }
            assert!(passes(&mut b, &mut a, &mut turn), "the other queues are as they were");
            a.post(1, &[2048]);
        }
        for guest in [&a, &b] {
            let counters = guest.shared.counters();
            assert_eq!((counters.queue_resets.get(), counters.resets.get(), counters.faults.get()), (4, 0, 0));
        }
    }
}
