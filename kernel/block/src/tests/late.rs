//! Requests that complete late and out of order, and resets and detachments meanwhile.

use super::support::{Bench, FORMS, Guest, IN, IOERR, OK, OUT, SPLIT, Slow, UNSUPP, UNTOUCHED, with_slow};
use crate::in_flight::MAX_IN_FLIGHT;
use crate::storage::Status;
use engine::control::{Command, Reply};

#[test]
fn requests_complete_in_the_order_of_the_storage() {
    for features in FORMS {
        let (mut guest, mut bench) = with_slow(Slow::new(512, 64), 1, features);
        bench.storage().bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 512) as u8);
        let sent: Vec<_> = (0..8).map(|sector| guest.send(IN, sector, Some(Err(512)))).collect();
        assert_eq!(bench.turn(), 8);
        assert_eq!(guest.used(), None);
        for (n, status, value, used) in
            [(5, Status::Ok, OK, 513), (0, Status::Failed, IOERR, 0), (7, Status::Unsupported, UNSUPP, 0)]
        {
            bench.interrupts.take();
            guest.queues[0].enable_interrupts();
            let tag = bench.storage().tags().into_iter().find(|tag| bench.storage().held[tag].first == n).unwrap();
            bench.storage().end(tag, status);
            assert_eq!(bench.turn(), 1);
            let sent = &sent[n as usize];
            assert_eq!((guest.used(), guest.status(sent)), (Some((sent.id, used)), value), "{features:?}");
            let data = if status == Status::Ok { n as u8 } else { UNTOUCHED };
            assert_eq!(guest.bytes(sent.at[1], 512), vec![data; 512]);
            assert_eq!(bench.interrupts.take(), [(3, 0x41)]);
        }
        assert_eq!(
            guest.counted(),
            [("reads", 1), ("read_bytes", 512), ("errors", 1), ("storage_errors", 1), ("unsupported", 1)]
        );
    }
}

#[test]
fn a_busy_storage_leaves_requests_in_the_queue_and_none_is_lost() {
    for features in FORMS {
        let (mut guest, mut bench) = with_slow(Slow { depth: 2, ..Slow::new(512, 64) }, 1, features);
        let sent: Vec<_> = (0..6).map(|n| guest.send(OUT, n, Some(Ok(&[n as u8 + 1; 512])))).collect();
        let mut done = 0;
        for _ in 0..20 {
            bench.turn();
            if let Some(&tag) = bench.storage().tags().last() {
                assert!(bench.storage().held.len() <= 2);
                bench.storage().end(tag, Status::Ok);
            }
            while guest.used().is_some() {
                done += 1;
            }
        }
        assert_eq!(done, 6);
        assert!(sent.iter().all(|sent| guest.status(sent) == OK));
        assert!((0..6).all(|n| bench.storage().bytes[512 * n] == n as u8 + 1));
        assert!(guest.counters.busy.get() > 0);
        bench.turn();
        assert_eq!(bench.engine.visited_queues(), 0, "the queue is armed again");
    }
}

#[test]
fn a_device_has_a_bounded_number_of_requests_in_flight() {
    let (mut guest, mut bench) = with_slow(Slow::new(512, 1024), 4, SPLIT);
    for n in 0..200_u16 {
        guest.send_on(n % 4, IN, n.into(), Some(Err(512)));
    }
    (0..20).for_each(|_| _ = bench.turn());
    assert_eq!(bench.storage().held.len(), usize::from(MAX_IN_FLIGHT));
    let mut used = 0;
    for _ in 0..10 {
        for tag in bench.storage().tags() {
            bench.storage().end(tag, Status::Ok);
        }
        bench.turn();
        used += guest.queues.iter_mut().map(|q| std::iter::from_fn(|| q.take_used()).count()).sum::<usize>();
    }
    assert_eq!(used, 200);
}

#[test]
fn several_queues_complete_each_on_its_own_with_its_own_interrupt() {
    for features in FORMS {
        let (mut guest, mut bench) = with_slow(Slow::new(512, 64), 3, features);
        guest.queues.iter_mut().for_each(|queue| queue.enable_interrupts());
        let sent: Vec<_> = (0..3).map(|queue| guest.send_on(queue, IN, queue.into(), Some(Err(512)))).collect();
        bench.turn();
        bench.interrupts.take();
        let tags = bench.storage().tags();
        let tag = tags.into_iter().find(|tag| bench.storage().held[tag].first == 2).unwrap();
        bench.storage().end(tag, Status::Ok);
        bench.turn();
        assert_eq!(guest.queues[2].take_used(), Some((sent[2].id, 513)));
        assert!(!guest.queues[0].has_used() && !guest.queues[1].has_used());
        assert_eq!(bench.interrupts.take(), [(3, 0x43)]);
    }
}

/// A guest with three requests in flight.
fn three(slow: Slow, features: virtio::config::Features) -> (Guest, Bench<Slow>) {
    let (mut guest, mut bench) = with_slow(slow, 1, features);
    (0..3).for_each(|n| drop(guest.send(IN, n, Some(Err(512)))));
    assert_eq!(bench.turn(), 3);
    (guest, bench)
}

#[test]
fn a_reset_waits_until_the_storage_has_let_go_of_the_buffers() {
    for features in FORMS {
        let (mut guest, mut bench) = three(Slow::new(512, 64), features);
        guest.shared.request_reset();
        for left in (1..=3).rev() {
            bench.turn();
            assert!(!guest.shared.reset_done(), "{left} in flight");
            let tag = bench.storage().tags()[0];
            bench.storage().end(tag, Status::Ok);
        }
        bench.turn();
        bench.turn();
        assert!(guest.shared.reset_done());
        assert_eq!(bench.storage().cancelled.len(), 3, "each was cancelled once");
        guest.start();
        bench.turn();
        assert_eq!((guest.used(), guest.counted()), (None, Vec::new()));
        let sent = guest.send(OUT, 1, Some(Ok(&[1; 512])));
        bench.turn();
        let tag = bench.storage().tags()[0];
        bench.storage().end(tag, Status::Ok);
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
        assert_eq!(guest.shared.counters().stale_tokens.get(), 0);
    }
}

#[test]
fn a_storage_that_can_cancel_makes_a_reset_immediate() {
    for features in FORMS {
        let (guest, mut bench) = three(Slow { cancels: true, ..Slow::new(512, 64) }, features);
        guest.shared.request_reset();
        bench.turn();
        assert!(guest.shared.reset_done());
        assert!(bench.storage().held.is_empty());
    }
}

#[test]
fn a_detachment_waits_too_and_the_slot_can_be_had_again() {
    for features in FORMS {
        let (guest, mut bench) = three(Slow::new(512, 64), features);
        for _ in 0..3 {
            assert_eq!(bench.command(Command::Detach { slot: guest.slot }), Reply::Detaching);
            let tag = bench.storage().tags()[0];
            bench.storage().end(tag, Status::Ok);
        }
        bench.turn();
        bench.turn();
        assert_eq!(bench.command(Command::Detach { slot: guest.slot }), Reply::Detached(None), "requests were dropped");
        let geometry = bench.storage().geometry;
        let mut other = Guest::new(guest.slot, &geometry, 1, features);
        assert_eq!(bench.attach(&other, ()), Reply::Attached);
        let sent = other.send(IN, 0, Some(Err(512)));
        bench.turn();
        let tag = bench.storage().tags()[0];
        bench.storage().end(tag, Status::Ok);
        assert_eq!(bench.ask(&mut other, &sent), (OK, 513));
    }
}

#[test]
fn a_reset_of_the_queue_waits_for_its_requests_and_completes_them() {
    for features in [SPLIT, super::support::PACKED] {
        let (mut guest, mut bench) = three(Slow::new(512, 64), features);
        assert!(guest.shared.reset_queue(0));
        bench.turn();
        assert!(!guest.shared.queue_reset_done(0));
        for tag in bench.storage().tags() {
            bench.storage().end(tag, Status::Ok);
        }
        bench.turn();
        bench.turn();
        assert!(guest.shared.queue_reset_done(0));
        guest.set_up_queue(0);
        bench.turn();
        assert_eq!(guest.counters.reads.get(), 3);
    }
}

#[test]
fn a_failed_device_completes_nothing_and_is_reset_like_any_other() {
    let (mut guest, mut bench) = three(Slow::new(512, 64), SPLIT);
    guest.offer(0, &[Ok(&[0; 3]), Err(1)]);
    bench.turn();
    assert!(guest.shared.needs_reset());
    for tag in bench.storage().tags() {
        bench.storage().end(tag, Status::Ok);
    }
    bench.turn();
    assert_eq!((guest.used(), guest.counted()), (None, Vec::new()));
    guest.shared.request_reset();
    bench.turn();
    assert!(guest.shared.reset_done());
}
