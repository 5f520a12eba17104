//! Parts of a volume: whatever is asked of a part, the blocks outside it stay as they are and are not read.

use memory::GuestMemory;
use memory::guest::testing::memory;
use proptest::prelude::*;
use virtio::chain::{Segment, Span};

use super::support::Slow;
use crate::part::{Part, Parts};
use crate::storage::{Operation, Request, Status, Storage, Submitted, Tag};

/// Blocks of the volume.
const BLOCKS: u64 = 64;
/// Bytes of a block.
const BLOCK: u32 = 512;

#[test]
fn a_part_is_within_its_volume_or_is_none() {
    for (first, blocks, good) in [
        (0, BLOCKS, true),
        (BLOCKS - 1, 1, true),
        (0, 0, false),
        (BLOCKS, 0, false),
        (BLOCKS, 1, false),
        (1, BLOCKS, false),
        (u64::MAX, 1, false),
        (1, u64::MAX, false),
        (u64::MAX, u64::MAX, false),
    ] {
        assert_eq!(Part::new((), BLOCKS, first, blocks).is_some(), good, "{blocks} blocks from {first} on");
    }
}

/// Any operation. Half of the ranges are near the part.
fn request() -> impl Strategy<Value = (Operation, u64, u32)> {
    let operation = prop_oneof![
        Just(Operation::Read),
        Just(Operation::Write { durable: true }),
        Just(Operation::Discard),
        Just(Operation::WriteZeroes { unmap: false, durable: false }),
        Just(Operation::Flush),
    ];
    let first = prop_oneof![0..2 * BLOCKS, any::<u64>(), Just(u64::MAX), Just(BLOCKS.wrapping_neg())];
    let blocks = prop_oneof![0..=BLOCKS as u32, any::<u32>()];
    (operation, first, blocks)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_leaves_its_part(
        start in 0..BLOCKS,
        len in 1..=BLOCKS,
        requests in prop::collection::vec(request(), 1..20),
    ) {
        let Some(part) = Part::new((), BLOCKS, start, len.min(BLOCKS - start)) else { panic!("it is within") };
        let blocks = len.min(BLOCKS - start);
        let mut slow = Slow::new(BLOCK, BLOCKS);
        slow.bytes.fill(0x11);
        let mut parts = Parts::new(slow);
        prop_assert_eq!(parts.geometry(part).blocks, blocks);
        let guest: GuestMemory = memory(0, (BLOCKS * u64::from(BLOCK)) as usize);
        for (operation, first, count) in requests {
            guest.zero(0, BLOCKS * u64::from(BLOCK)).expect("it is memory");
            let bytes = count.saturating_mul(BLOCK).min(BLOCKS as u32 * BLOCK);
            let buffers = [Segment { gpa: 0, len: bytes }];
            let has_data = matches!(operation, Operation::Read | Operation::Write { .. });
            let data = if has_data && bytes != 0 { Span::new(&buffers, bytes) } else { Span::new(&[], 0) };
            let ask = Request { operation, first, blocks: count, data, memory: &guest };
            let answer = parts.submit(part, Tag(3), &ask, 0);
            let is_within = first.checked_add(count.into()).is_some_and(|end| end <= blocks);
            if is_within || operation == Operation::Flush {
                prop_assert_eq!(answer, Submitted::Pending);
                parts.inner().end(3, Status::Ok);
                let mut ended = Vec::new();
                parts.poll(0, &mut |tag, status| ended.push((tag, status)));
                prop_assert_eq!(ended, [(Tag(3), Status::Ok)]);
            } else {
                prop_assert_eq!(answer, Submitted::Done(Status::Failed));
            }
        }
        let bytes = &parts.inner().bytes;
        let (from, to) = ((start * u64::from(BLOCK)) as usize, ((start + blocks) * u64::from(BLOCK)) as usize);
        prop_assert!(bytes[..from].iter().chain(&bytes[to..]).all(|byte| *byte == 0x11), "a byte outside has changed");
    }
}

#[test]
fn all_of_a_volume_changes_its_size_with_it_and_a_partition_only_shrinks() {
    let mut parts = Parts::new(Slow::new(512, 100));
    let all = Part::new((), 100, 0, 100).expect("all");
    let partition = Part::new((), 100, 40, 20).expect("within");
    for (size, of_partition) in [(100, 20), (200, 20), (50, 10), (40, 0), (0, 0)] {
        parts.inner().geometry.blocks = size;
        assert_eq!([parts.blocks(all), parts.blocks(partition)], [size, of_partition]);
        assert_eq!([parts.geometry(all).blocks, parts.geometry(partition).blocks], [size, of_partition]);
    }
}
