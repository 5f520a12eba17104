//! Reads, writes and the other operations.

use nvme::{Limits, Operation, Refused, Request, Status};

use crate::bench::{Bench, disks, small};

const WRITE: Operation = Operation::Write { fua: false };
const ZEROES: Operation = Operation::WriteZeroes { deallocate: false, fua: false };

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(13) ^ (i >> 8) as u8 ^ seed).collect()
}

#[test]
fn what_is_written_is_on_the_disk_and_is_read_again() {
    let mut b = Bench::up();
    for (namespace, block) in [(1, 512), (2, 4096)] {
        for (first, blocks) in [(0, 1), (7, 2), (100, 16)] {
            let data = pattern(blocks * block, first as u8);
            let from = b.piece(&data, 0, false);
            assert_eq!(b.answer(namespace, WRITE, (first, blocks as u32), &[from]), Ok(Status::Ok));
            assert!(b.disk(namespace, first, blocks as u64) == data);
            let into = b.piece(&vec![0; data.len()], 512, true);
            assert_eq!(b.answer(namespace, Operation::Read, (first, blocks as u32), &[into]), Ok(Status::Ok));
            assert!(b.contents(&[into]) == data);
        }
    }
    b.clean();
}

#[test]
fn a_flush_and_fua_reach_the_device() {
    let mut b = Bench::up();
    let from = b.piece(&pattern(512, 1), 0, false);
    let volatile = |b: &Bench| b.model.borrow().namespaces[0].volatile.len();
    assert_eq!(b.answer(1, WRITE, (3, 1), &[from]), Ok(Status::Ok));
    assert_eq!(volatile(&b), 1);
    assert_eq!(b.answer(1, Operation::Write { fua: true }, (4, 1), &[from]), Ok(Status::Ok));
    assert_eq!(volatile(&b), 1);
    assert_eq!(b.answer(1, Operation::Flush, (0, 0), &[]), Ok(Status::Ok));
    assert_eq!((volatile(&b), b.model.borrow().flushes), (0, 1));
    b.clean();
}

#[test]
fn without_a_volatile_cache_a_flush_is_answered_by_the_next_poll() {
    let mut b = Bench::up_with(small(), nvme_model::Config { cache: false, ..Default::default() }, disks());
    assert_eq!(b.answer(1, Operation::Flush, (0, 0), &[]), Ok(Status::Ok));
    assert_eq!(b.model.borrow().executed, []);
    let taken = (0..100).take_while(|_| b.submit(1, Operation::Flush, (0, 0), &[]).is_ok()).count();
    assert_eq!(taken, 15, "a caller that does not poll does not fill memory");
    b.turn();
    b.clean();
}

#[test]
fn blocks_are_zeroed_and_deallocated() {
    let mut b = Bench::up();
    assert_eq!(b.answer(1, ZEROES, (5, 3), &[]), Ok(Status::Ok));
    assert_eq!(b.disk(1, 5, 3), [0; 1536]);
    assert_ne!(b.disk(1, 8, 1), [0; 512]);
    assert_eq!(b.answer(1, Operation::WriteZeroes { deallocate: true, fua: false }, (9, 1), &[]), Ok(Status::Ok));
    assert_eq!(b.model.borrow().executed.iter().map(|e| e.dword12).collect::<Vec<_>>(), [2, 1 << 25]);
    assert_eq!(b.answer(2, Operation::Deallocate, (1, 2000), &[]), Ok(Status::Ok));
    let last = *b.model.borrow().executed.last().unwrap();
    assert_eq!((last.opcode, last.namespace, last.first, last.blocks), (9, 2, 1, 2000));
    b.clean();
}

#[test]
fn what_the_device_cannot_do_is_refused() {
    let mut b = Bench::up_with(small(), nvme_model::Config { oncs: 0, ..Default::default() }, disks());
    assert_eq!(b.submit(1, ZEROES, (0, 1), &[]), Err(Refused::Unsupported));
    assert_eq!(b.submit(1, Operation::Deallocate, (0, 1), &[]), Err(Refused::Unsupported));
    let limits = b.queues[0].limits(1).unwrap();
    assert_eq!((limits.zero_blocks, limits.deallocate_blocks), (0, 0));
    b.clean();
}

#[test]
fn a_request_that_does_not_fit_the_namespace_is_refused() {
    let mut b = Bench::up();
    let block = b.piece(&[0; 512], 0, true);
    let two = b.piece(&[0; 1024], 0, true);
    for (range, segments, why) in [
        ((16384, 1), &[block][..], Refused::Range),
        ((16383, 2), &[two], Refused::Range),
        ((u64::MAX, 1), &[block], Refused::Range),
        ((u64::MAX, u32::MAX), &[block], Refused::Range),
        ((0, 0), &[], Refused::Range),
        ((0, 2), &[block], Refused::Length),
        ((0, 1), &[two], Refused::Length),
        ((0, 1), &[], Refused::Length),
        ((0, 4096), &[block], Refused::TooLong),
    ] {
        assert_eq!(b.submit(1, Operation::Read, range, segments), Err(why), "{range:?}");
    }
    assert_eq!(b.submit(1, ZEROES, (0, 1), &[block]), Err(Refused::Length));
    assert_eq!(b.submit(1, Operation::Flush, (0, 0), &[block]), Err(Refused::Length));
    assert_eq!(b.submit(1, Operation::Deallocate, (16384, 1), &[]), Err(Refused::Range));
    assert_eq!(b.submit(3, Operation::Read, (0, 1), &[block]), Err(Refused::Namespace));
    assert_eq!(b.submit(0, Operation::Read, (0, 1), &[block]), Err(Refused::Namespace));
    b.clean();
}

#[test]
fn limits_follow_mdts_the_queue_and_the_configuration() {
    let limits = |mdts, namespace| {
        let b = Bench::up_with(small(), nvme_model::Config { mdts, ..Default::default() }, disks());
        b.queues[0].limits(namespace).unwrap()
    };
    let expected =
        |data, zero| Limits { data_blocks: data, zero_blocks: zero, deallocate_blocks: u32::MAX, segments: 1024 };
    // Eight commands of 128 KiB; of 8 KiB; of 1 MiB, of which the request may have one.
    assert_eq!(limits(5, 1), expected(2048, 2048));
    assert_eq!(limits(1, 1), expected(128, 128));
    assert_eq!(limits(1, 2), expected(16, 16));
    assert_eq!(limits(0, 1), expected(2048, 16384));
}

#[test]
fn a_long_request_becomes_several_commands_and_gets_one_answer() {
    let mut b = Bench::up_with(small(), nvme_model::Config { mdts: 1, ..Default::default() }, disks());
    let data = pattern(50 * 512, 3);
    let from = b.piece(&data, 100 * 4, false);
    assert_eq!(b.answer(1, WRITE, (10, 50), &[from]), Ok(Status::Ok));
    let commands: Vec<_> = b.model.borrow().executed.iter().map(|e| (e.first, e.blocks)).collect();
    assert_eq!(commands, [(10, 16), (26, 16), (42, 16), (58, 2)]);
    assert!(b.disk(1, 10, 50) == data);
    // Commands done last first, one of them with an error: one answer, with the error.
    b.model.borrow_mut().faults.reverse = true;
    b.model.borrow_mut().faults.io_status = vec![0x281];
    let into = b.piece(&vec![0; data.len()], 0, true);
    let Ok(Status::Device(code)) = b.answer(1, Operation::Read, (10, 50), &[into]) else { panic!() };
    assert_eq!(code.type_and_code(), 0x281);
    assert!(Status::Device(code).is_media_error());
    // Zeroes too are split.
    assert_eq!(b.answer(1, ZEROES, (0, 40), &[]), Ok(Status::Ok));
    assert_eq!(b.disk(1, 0, 40), vec![0; 40 * 512]);
    b.clean();
}

#[test]
fn answers_come_late_and_out_of_order_with_their_requests_identifiers() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    b.model.borrow_mut().faults.reverse = true;
    let into: Vec<_> = (0..5).map(|_| b.piece(&[0; 512], 0, true)).collect();
    let ids: Vec<_> = (0..5).map(|i| b.submit(1, Operation::Read, (i as u64, 1), &into[i..=i]).unwrap()).collect();
    b.pass(1000);
    assert_eq!((b.answers.len(), b.queues[0].outstanding()), (0, 5));
    b.model.borrow_mut().faults.hold = false;
    b.turn();
    assert_eq!(b.answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids.into_iter().rev().collect::<Vec<_>>());
    for (block, into) in (0..).zip(&into) {
        assert_eq!(b.contents(&[*into]), b.disk(1, block, 1));
    }
    b.clean();
}

#[test]
fn a_full_queue_says_busy_and_wraps_for_ever() {
    let mut b = Bench::up();
    for round in 0..100 {
        let ids: Vec<_> = (0..15).map(|block| b.read_block(block)).collect();
        let into = b.piece(&[0; 512], 0, true);
        assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Busy), "round {round}");
        b.turn();
        ids.iter().for_each(|id| assert_eq!(b.status_of(*id), Status::Ok));
    }
    b.clean();
}

#[test]
fn one_doorbell_is_written_for_a_batch() {
    let mut b = Bench::up();
    let into = b.piece(&[0; 512], 0, true);
    for id in 0..4 {
        let request = Request { id, namespace: 1, operation: Operation::Read, first: 0, blocks: 1 };
        b.queues[0].submit(&request, &[into], b.now).unwrap();
    }
    b.turn();
    assert!(b.answers.is_empty(), "nothing is seen before the doorbell");
    b.queues[0].notify();
    b.turn();
    assert_eq!(b.answers.len(), 4);
    b.clean();
}

#[test]
fn a_transient_error_is_tried_again_and_others_are_not() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.io_status = vec![0x082, 0x021];
    let id = b.read_block(1);
    b.turn();
    assert!(b.answers.is_empty());
    b.until(|b| !b.answers.is_empty());
    assert_eq!(b.status_of(id), Status::Ok);
    // Do Not Retry; and for ever.
    for statuses in [vec![0x4082], vec![0x082; 4]] {
        b.model.borrow_mut().faults.io_status = statuses;
        b.answers.clear();
        let id = b.read_block(1);
        b.until(|b| !b.answers.is_empty());
        assert!(matches!(b.status_of(id), Status::Device(_)));
        assert!(b.model.borrow().faults.io_status.is_empty());
    }
    b.clean();
}

#[test]
fn an_unknown_command_is_told_as_such() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.io_status = vec![0x4001];
    let Ok(status) = b.answer(1, ZEROES, (0, 1), &[]) else { panic!() };
    assert!(status.is_unsupported() && !status.is_media_error());
    b.clean();
}

#[test]
fn queues_work_beside_each_other() {
    let mut b = Bench::up_with(nvme::Config { queues: 3, ..small() }, Default::default(), disks());
    let into: Vec<_> = (0..3).map(|_| b.piece(&[0; 512], 0, true)).collect();
    for (queue, into) in (0..3).zip(&into) {
        let request = Request { id: queue, namespace: 1, operation: Operation::Read, first: queue.into(), blocks: 1 };
        let now = b.now;
        b.queues[queue as usize].submit(&request, &[*into], now).unwrap();
        b.queues[queue as usize].notify();
    }
    b.turn();
    assert_eq!(
        b.model.borrow().executed.iter().map(|e| (e.queue, e.first)).collect::<Vec<_>>(),
        [(1, 0), (2, 1), (3, 2)]
    );
    assert_eq!(b.answers, [(0, Status::Ok), (1, Status::Ok), (2, Status::Ok)]);
    b.clean();
}
