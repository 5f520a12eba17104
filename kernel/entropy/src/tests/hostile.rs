//! A driver that breaks a rule loses its device until it resets the device. Other guests lose nothing.

use super::support::{Bench, FORMS, Guest};
use virtio::fault::Fault;

#[test]
fn a_buffer_that_the_device_is_to_read_breaks_the_device() {
    for features in FORMS {
        for buffers in [&[(8, false)][..], &[(8, false), (64, true)], &[(8, false), (8, false)]] {
            let (mut hostile, mut neighbour) = (Guest::new(1, features), Guest::new(2, features));
            let mut bench = Bench::with(&[&hostile, &neighbour]);
            let at = hostile.ask(buffers);
            neighbour.ask(&[(64, true)]);
            bench.turn();
            assert!(hostile.shared.needs_reset(), "{buffers:?} {features:?}");
            assert_eq!(hostile.faults(Fault::Direction), 1);
            assert_eq!((hostile.used(), hostile.counted()), (None, [0; 3]));
            at.iter()
                .zip(buffers)
                .for_each(|(&gpa, &(len, _))| assert_eq!(hostile.bytes(gpa, len as usize), vec![0; len as usize]));
            assert_eq!(neighbour.used(), Some(64));

            hostile.shared.request_reset();
            bench.turn();
            assert!(hostile.shared.reset_done());
            hostile.start();
            hostile.ask(&[(64, true)]);
            bench.turn();
            assert_eq!(hostile.used(), Some(64), "it works again after a reset");
        }
    }
}

#[test]
fn a_buffer_outside_the_guests_memory_breaks_the_device() {
    for features in FORMS {
        let mut guest = Guest::new(0, features);
        let mut bench = Bench::with(&[&guest]);
        guest.queue.add(&[(1 << 40, 64, true)]).expect("there is room");
        guest.shared.kick(0);
        bench.turn();
        assert_eq!(guest.faults(Fault::Buffer), 1);
        assert_eq!((guest.used(), guest.counted()), (None, [0; 3]));
    }
}
