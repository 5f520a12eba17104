//! Batches of frames whose buffers lie at the start and the end of a guest's memory.

#![allow(unsafe_code, reason = "gives a guest more memory")]

use memory::guest::{Region, testing::memory};

use super::ALL;
use crate::offload::HEADER_BYTES;
use crate::testing::{BUFFERS, Guest, MEMORY};
use crate::tests::support::Bench;

/// Where a second region of memory begins, and its size.
const HIGH: u64 = 1 << 32;
const HIGH_BYTES: u64 = 0x8000;

fn with_high_memory(mut guest: Guest) -> Guest {
    let high = memory(HIGH, HIGH_BYTES as usize);
    let host = high.translate(HIGH, HIGH_BYTES).unwrap();
    // SAFETY: backed by the leaked memory of `high`.
    unsafe { guest.memory.add(Region { gpa: HIGH, size: HIGH_BYTES, host }) }.unwrap();
    guest
}

/// Places for `len` bytes: in the middle of the first region, at the ends of both, each of them the last bytes there, and at the
/// beginning of the second.
fn places(len: u64, n: u64) -> [u64; 4] {
    [BUFFERS + 0x1000 * n, MEMORY as u64 - len, HIGH + HIGH_BYTES - len, HIGH + 0x800 * n]
}

#[test]
fn a_run_goes_through_all_regions_and_to_their_last_bytes() {
    for len in [60, 61, 127, 128, 129, 1514] {
        let bytes = HEADER_BYTES as u64 + len as u64;
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
            let (mut a, mut b) =
                (with_high_memory(Guest::new(1, ALL, 256, 1500)), with_high_memory(Guest::new(2, ALL, 256, 1500)));
            let mut bench = Bench::with(&[&a, &b]);
            let mut frames: Vec<(u64, Vec<u8>, u64)> = Vec::new();
            for i in 0..4u64 {
                // Two of this kind and two of that.
                let kind = |kind: usize| if i.is_multiple_of(2) { kind } else { (kind + i as usize) % 4 };
                let frame = a.frame(b.mac, len, i as u8);
                let (source, target) = (places(bytes, i)[kind(from)], places(1526, i)[kind(to)]);
                // Frames that lie in the same place would be the same.
                let frame =
                    frames.iter().find(|(other, ..)| *other == source).map_or(frame, |(_, same, _)| same.clone());
                a.memory.write(source, &[&[0; HEADER_BYTES][..], &frame].concat()).unwrap();
                a.tx.add(&[(source, bytes as u32, false)]).unwrap();
                b.rx.add(&[(target, 1526, true)]).unwrap();
                frames.push((source, frame, target));
            }
            assert_eq!(bench.turn(), 4);
            let mut last = std::collections::BTreeMap::new();
            for (_, frame, target) in &frames {
                assert_eq!(b.rx.take_used().map(|(_, len)| len), Some(bytes as u32), "{len}: {from} to {to}");
                last.insert(*target, frame);
            }
            for (target, frame) in last {
                let mut got = vec![0; bytes as usize];
                b.memory.read(target, &mut got).unwrap();
                assert_eq!(&got[HEADER_BYTES..], frame, "{len}: {from} to {to}");
                assert_eq!(got[..HEADER_BYTES], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            }
            assert_eq!(a.counters().frames.tx_packets.get(), 4);
        }
    }
}
