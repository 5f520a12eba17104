//! Output: from the guest to the control core.

use super::support::{Bench, FORMS, OUTPUT, PATIENCE};
use crate::device::transmit_queue;

fn bytes(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|n| (n % 251) as u8).collect()
}

#[test]
fn output_arrives_whole_and_in_order_on_each_port() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a", "b"]);
        let mut sent = [0; 3];
        for round in 0..40 {
            for (port, sent) in sent.iter_mut().enumerate() {
                let count = 1 + (round * 7 + port * 13) % 32;
                let all = bytes(*sent, count);
                let (first, second) = all.split_at(count / 3);
                if first.is_empty() {
                    guest.offer(transmit_queue(port), &[Ok(second)]);
                } else {
                    guest.offer(transmit_queue(port), &[Ok(first), Ok(second)]);
                }
                bench.turn();
                assert_eq!(guest.used(transmit_queue(port)), 1);
                assert_eq!(guest.read(port), all, "{features:?}");
                *sent += count;
            }
        }
        for (port, sent) in sent.into_iter().enumerate() {
            let c = &guest.port(port).counters;
            let counted = [&c.output_bytes, &c.output_requests, &c.output_dropped, &c.waits].map(|c| c.get());
            assert_eq!(counted, [sent as u64, 40, 0, 0]);
        }
        assert_eq!(guest.shared.counters().kicks.get(), 1, "one control message; output is polled");
    }
}

#[test]
fn a_request_larger_than_the_ring_arrives_whole_if_somebody_reads() {
    for features in FORMS {
        for port in [0, 1] {
            let (mut bench, mut guest) = Bench::connected(features, &["a"]);
            let all = bytes(0, 1000);
            guest.offer(transmit_queue(port), &[Ok(&all[..300]), Ok(&all[300..301]), Ok(&all[301..])]);
            guest.send(port, b"next");
            let mut got = Vec::new();
            for _ in 0..40 {
                bench.turn();
                got.extend(guest.read(port));
            }
            assert_eq!(got, [&all[..], b"next"].concat(), "{features:?}");
            assert_eq!(guest.used(transmit_queue(port)), 2);
            assert_eq!(guest.port(port).counters.output_dropped.get(), 0);
        }
    }
}

#[test]
fn a_named_port_waits_for_its_reader_and_loses_nothing() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &["a"]);
        let all = bytes(0, 3 * OUTPUT);
        all.chunks(OUTPUT / 2).for_each(|part| guest.send(1, part));
        for _ in 0..100 * PATIENCE {
            bench.turn();
        }
        assert_eq!(guest.used(transmit_queue(1)), 2, "as many as fit");
        // The console goes on meanwhile.
        guest.send(0, b"x");
        bench.turn();
        assert_eq!(guest.read(0), b"x");
        let mut got = Vec::new();
        for _ in 0..10 {
            got.extend(guest.read(1));
            bench.turn();
        }
        assert_eq!(got, all, "{features:?}");
        let c = &guest.port(1).counters;
        assert_eq!((c.output_dropped.get(), c.output_bytes.get()), (0, 3 * OUTPUT as u64));
        assert!(c.waits.get() >= 1);
    }
}

#[test]
fn the_console_drops_what_nobody_reads_counts_it_and_goes_on() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &[]);
        let all = bytes(0, 3 * OUTPUT);
        all.chunks(OUTPUT / 2).for_each(|part| guest.send(0, part));
        for _ in 0..PATIENCE {
            bench.turn();
        }
        assert_eq!(guest.used(transmit_queue(0)), 2, "the rest waits for the reader");
        bench.turn();
        assert_eq!(guest.used(transmit_queue(0)), 4, "then the guest goes on");
        let c = &guest.port(0).counters;
        assert_eq!((c.output_bytes.get(), c.output_dropped.get()), (OUTPUT as u64, 2 * OUTPUT as u64));
        // From now on it does not wait again until there was room.
        guest.send(0, b"lost");
        bench.turn();
        assert_eq!((guest.used(transmit_queue(0)), c.output_dropped.get()), (1, 2 * OUTPUT as u64 + 4));
        assert_eq!(guest.read(0), all[..OUTPUT], "the oldest are kept");
        guest.send(0, b"seen");
        bench.turn();
        assert_eq!(guest.read(0), b"seen");
        assert_eq!(c.waits.get(), 1);
    }
}

#[test]
fn output_that_was_sent_before_a_reset_can_still_be_read() {
    for features in FORMS {
        let (mut bench, mut guest) = Bench::connected(features, &[]);
        guest.send(0, b"last words");
        bench.turn();
        guest.shared.request_reset();
        bench.turn();
        assert!(guest.shared.reset_done());
        assert_eq!(guest.read(0), b"last words");
    }
}
