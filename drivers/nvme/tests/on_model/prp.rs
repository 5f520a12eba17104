//! How data is described to the device.

use nvme::dma::Segment;
use nvme::{Config, Operation, Refused, Status};
use nvme_model::Namespace;
use proptest::prelude::*;

use crate::bench::{Bench, disks, small};

const WRITE: Operation = Operation::Write { fua: false };

/// PRP1 and PRP2 of the last command, as offsets in their pages, and whether they are in the segments' own memory.
fn last(b: &Bench, segments: &[Segment]) -> [(u64, bool); 2] {
    let (prp1, prp2) = b.model.borrow().executed.last().unwrap().prp;
    [prp1, prp2].map(|prp| {
        let own = segments.iter().any(|s| (s.address()..s.address() + u64::from(s.len())).contains(&prp));
        (prp % 4096, own)
    })
}

#[test]
fn pages_are_named_where_they_lie() {
    let mut b = Bench::up();
    let free = b.queues[0].free_bounce_pages();
    b.model.borrow_mut().faults.hold = true;
    for (len, offset, expected) in [
        (512, 0, [(0, true), (0, false)]),
        (512, 3584, [(3584, true), (0, false)]),
        (512, 4, [(4, true), (0, false)]),
        (4096, 0, [(0, true), (0, false)]),
        // Two pages, and a page's end crossed.
        (8192, 0, [(0, true), (0, true)]),
        (1024, 3584, [(3584, true), (0, true)]),
        (4096, 2048, [(2048, true), (0, true)]),
        // A list: PRP2 is the driver's.
        (8192, 2048, [(2048, true), (0, false)]),
        (12288, 0, [(0, true), (0, false)]),
    ] {
        let data: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
        let from = b.piece(&data, offset, false);
        b.submit(1, WRITE, (0, len as u32 / 512), &[from]).unwrap();
        assert_eq!(b.queues[0].free_bounce_pages(), free, "{len} at {offset}");
        b.model.borrow_mut().faults.hold = false;
        b.turn();
        assert_eq!(last(&b, &[from]), expected, "{len} at {offset}");
        assert!(b.disk(1, 0, len as u64 / 512) == data);
        b.model.borrow_mut().faults.hold = true;
    }
    b.clean();
}

#[test]
fn only_what_prp_cannot_say_takes_bounce_pages_and_they_come_back() {
    let mut b = Bench::up();
    let free = b.queues[0].free_bounce_pages();
    for (parts, pages) in [
        // Offset and length of each segment.
        (&[(1, 512)][..], 1),
        (&[(0, 512), (0, 4096), (0, 3584)], 1),
        (&[(0, 4096), (8, 4096), (0, 4096)], 1),
        (&[(3, 8192)], 2),
        (&[(0, 256), (0, 256)], 1),
        (&[(3840, 256), (0, 256)], 0),
    ] {
        for operation in [WRITE, Operation::Read] {
            let len: usize = parts.iter().map(|(_, len)| len).sum();
            let data: Vec<u8> = (0..len).map(|i| ((i * 17) >> 2) as u8).collect();
            let mut at = 0;
            let segments: Vec<_> = parts
                .iter()
                .map(|(offset, len)| {
                    at += len;
                    b.piece(&data[at - len..at], *offset, operation == Operation::Read)
                })
                .collect();
            b.submit(1, operation, (8, len as u32 / 512), &segments).unwrap();
            assert_eq!(free - b.queues[0].free_bounce_pages(), pages, "{parts:?}");
            b.turn();
            assert_eq!(b.queues[0].free_bounce_pages(), free);
            assert!(b.contents(&segments) == b.disk(1, 8, len as u64 / 512), "{parts:?}");
        }
    }
    b.clean();
}

#[test]
fn a_sector_of_single_bytes_is_read_and_written() {
    let mut b = Bench::up();
    let data: Vec<u8> = (0..1024).map(|i| (i * 7) as u8).collect();
    let block = b.memory.granted(4096, 4096);
    // Each byte is two bytes from the next, in reverse order.
    let segments: Vec<_> = (0..1024_u64)
        .map(|i| {
            let at = block.bus + 2 * (1023 - i);
            b.memory.fill(at, &data[i as usize..=i as usize]);
            // SAFETY: test data.
            unsafe { Segment::new(at, 1) }
        })
        .collect();
    assert_eq!(b.answer(1, WRITE, (0, 2), &segments), Ok(Status::Ok));
    assert!(b.disk(1, 0, 2) == data);
    assert_eq!(b.answer(1, Operation::Read, (9, 2), &segments), Ok(Status::Ok));
    assert!(b.contents(&segments) == b.disk(1, 9, 2));
    // One more is too many.
    // SAFETY: test data.
    let more: Vec<_> = [&segments[..], &[unsafe { Segment::new(block.bus, 0) }]].concat();
    assert_eq!(b.submit(1, Operation::Read, (9, 2), &more), Err(Refused::TooLong));
    b.clean();
}

#[test]
fn a_list_goes_over_several_pages() {
    let config = Config { max_bytes: 8 << 20, list_pages: 3, ..small() };
    let device = nvme_model::Config { mdts: 0, ..Default::default() };
    let mut b = Bench::up_with(config, device, vec![Namespace::new(1, 9, 16384)]);
    let block = b.memory.granted(1534 * 4096, 4096);
    // Pages around the ends of the list's first and second page: 511 or 512 entries in it, 1,022 or 1,023.
    for pages in [3, 511, 512, 513, 514, 515, 1022, 1023, 1024, 1025, 1026, 1533] {
        for offset in [0, 512] {
            let before = b.model.borrow().executed.len();
            let data: Vec<u8> = (0..pages * 4096_u32).map(|i| (i >> 12 ^ i) as u8).collect();
            b.memory.fill(block.bus + offset, &data);
            // SAFETY: test data.
            let from = unsafe { Segment::new(block.bus + offset, data.len() as u32) };
            assert_eq!(b.answer(1, WRITE, (0, pages * 8), &[from]), Ok(Status::Ok));
            assert!(b.disk(1, 0, u64::from(pages) * 8) == data, "{pages} pages at {offset}");
            assert_eq!(b.model.borrow().executed.len() - before, 1);
        }
    }
    b.clean();
}

#[test]
fn bounce_pages_that_are_used_up_make_a_request_wait() {
    let config = Config { max_bytes: 16384, ..small() };
    let mut b = Bench::up_with(config, Default::default(), disks());
    b.model.borrow_mut().faults.hold = true;
    let data = vec![5; 16384];
    let from = b.piece(&data, 1, false);
    let free = b.queues[0].free_bounce_pages();
    let first = b.submit(1, WRITE, (0, 32), &[from]).unwrap();
    assert_eq!(b.submit(1, WRITE, (32, 32), &[from]), Err(Refused::Busy));
    assert_eq!(free - b.queues[0].free_bounce_pages(), 4, "what was not taken keeps nothing");
    b.model.borrow_mut().faults.hold = false;
    b.turn();
    assert_eq!(b.status_of(first), Status::Ok);
    assert_eq!(b.answer(1, WRITE, (32, 32), &[from]), Ok(Status::Ok));
    assert!(b.disk(1, 32, 32) == data);
    assert_eq!(b.queues[0].free_bounce_pages(), free);
    b.clean();
}

#[test]
fn a_retried_write_sends_the_same_bytes_from_its_bounce_pages() {
    let mut b = Bench::up();
    let data: Vec<u8> = (0..1024).map(|i| (i * 3) as u8).collect();
    let from = b.piece(&data, 1, false);
    b.model.borrow_mut().faults.hold = true;
    let id = b.submit(1, WRITE, (0, 2), &[from]).unwrap();
    b.turn();
    b.model.borrow_mut().faults.fatal = true;
    b.pass(1000);
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| !b.answers.is_empty());
    assert_eq!(b.status_of(id), Status::Ok);
    assert!(b.disk(1, 0, 2) == data);
    b.clean();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any segments, in any memory, with any MDTS: the device sees their bytes in their order, and only them.
    #[test]
    fn random_segments_carry_their_bytes(
        parts in prop::collection::vec((0_usize..5000, prop_oneof![1_usize..40, 500_usize..520, 4000_usize..9000]), 1..12),
        aligned in any::<u16>(),
        mdts in 0_u8..4,
        large in any::<bool>(),
    ) {
        let device = nvme_model::Config { mdts, ..Default::default() };
        let namespaces = vec![Namespace::new(1, 9, 400), Namespace::new(2, 12, 200)];
        let mut b = Bench::up_with(Config { max_bytes: 256 << 10, ..small() }, device, namespaces);
        let (namespace, block) = if large && mdts != 0 { (2, 4096) } else { (1, 512) };
        let total: usize = parts.iter().map(|(_, len)| len).sum();
        let rest = total.next_multiple_of(block) - total;
        let mut parts = parts;
        if rest != 0 {
            parts.push((rest, rest));
        }
        let mut segments = Vec::new();
        for (n, (offset, len)) in parts.iter().enumerate() {
            // Half of them are aligned, so that whole pages are there too.
            let offset = if aligned >> n & 1 == 1 { offset / 4096 * 4096 } else { *offset };
            let bytes: Vec<u8> = (0..*len).map(|i| ((i * 29) >> 1) as u8 ^ n as u8).collect();
            segments.push(b.piece(&bytes, offset, true));
        }
        let written = b.contents(&segments);
        let blocks = written.len() / block;
        let range = (1, blocks as u32);
        prop_assert_eq!(b.answer(namespace, WRITE, range, &segments), Ok(Status::Ok));
        prop_assert!(b.disk(namespace, 1, blocks as u64) == written);
        let range = (blocks as u64, blocks as u32);
        prop_assert_eq!(b.answer(namespace, Operation::Read, range, &segments), Ok(Status::Ok));
        prop_assert!(b.disk(namespace, blocks as u64, blocks as u64) == b.contents(&segments));
        b.clean();
    }
}
