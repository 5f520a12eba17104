//! Tables that are well summed and lie.

use proptest::prelude::*;

use super::{Image, SGDISK_512, both};
use crate::{Fault, Refusal};

/// Writes a number into both headers. Returns the faults of both copies.
fn changed(image: &Image, at: usize, value: &[u8]) -> Result<(), (Fault, Fault)> {
    let mut image = image.clone();
    for header in [1, image.last()] {
        image.change(header, |block| block[at..at + value.len()].copy_from_slice(value));
    }
    match image.read() {
        Ok(_) => Ok(()),
        Err(Refusal::Both(faults)) => Err(*faults),
        Err(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn absurd_headers_are_refused_by_name() {
    let wide = u64::to_le_bytes;
    for image in both() {
        let end = image.last();
        let is = |at, value: &[u8], right: fn(&Fault) -> bool| {
            let (primary, backup) = changed(&image, at, value).expect_err("it is absurd");
            assert!(right(&primary) && right(&backup), "offset {at}: {primary}; {backup}");
        };
        is(8, &[0, 0, 2, 0], |f| matches!(f, Fault::Revision(0x2_0000)));
        for size in [0, 91, image.block as u32 + 1, u32::MAX] {
            is(12, &size.to_le_bytes(), |f| matches!(f, Fault::HeaderSize(_)));
        }
        is(24, &wide(2), |f| matches!(f, Fault::Place { said: 2, .. }));
        for other in [0, end + 1, u64::MAX] {
            is(32, &wide(other), |f| matches!(f, Fault::Alternate(_)));
        }
        for first in [0, 1, end, u64::MAX] {
            is(40, &wide(first), |f| matches!(f, Fault::Usable(..)));
        }
        for last in [0, end, u64::MAX] {
            is(48, &wide(last), |f| matches!(f, Fault::Usable(..)));
        }
        for place in [0, 1, image.at_number(40), end, u64::MAX] {
            is(72, &wide(place), |f| matches!(f, Fault::ArrayPlace(..)));
        }
        for entries in [0, 1025, u32::MAX] {
            is(80, &entries.to_le_bytes(), |f| matches!(f, Fault::ArraySize(..)));
        }
        for size in [0, 64, 129, 384, 8192, u32::MAX] {
            is(84, &size.to_le_bytes(), |f| matches!(f, Fault::EntrySize(_)));
        }
    }
}

impl Image {
    fn at_number(&self, at: usize) -> u64 {
        self.clone().at(1)[at..at + 8].try_into().map(u64::from_le_bytes).expect("eight")
    }
}

#[test]
fn a_longer_header_is_summed_in_full() {
    for mut image in both() {
        for header in [1, image.last()] {
            image.change(header, |block| {
                block[12..16].copy_from_slice(&96_u32.to_le_bytes());
                block[92] = 7;
            });
        }
        assert_eq!(image.read().expect("a table").damage, None);
        image.at(1)[93] = 1;
        assert!(image.read().expect("the backup").damage.is_some());
    }
}

#[test]
fn partitions_beyond_the_usable_blocks_or_over_each_other_are_refused() {
    let image = Image::load(SGDISK_512, 512);
    let (first, last) = (image.at_number(40), image.at_number(48));
    let with = |start: u64, end: u64| {
        let mut image = image.clone();
        image.change_entry(2, |entry| {
            entry[32..40].copy_from_slice(&start.to_le_bytes());
            entry[40..48].copy_from_slice(&end.to_le_bytes());
        });
        match image.read() {
            Err(Refusal::Both(faults)) => Some(faults.0),
            Ok(_) => None,
            Err(refusal) => panic!("{refusal}"),
        }
    };
    assert_eq!(with(first, first), None);
    assert_eq!(with(last, last), None);
    assert_eq!(with(4096, 4096), None, "behind partition 1");
    assert_eq!(with(2047, 2047), None, "before it");
    for (start, end) in [
        (first - 1, first),
        (last, last + 1),
        (7000, 6999),
        (0, u64::MAX),
        (6144, u64::MAX),
        (u64::MAX, u64::MAX),
        (0, 0),
    ] {
        assert!(matches!(with(start, end), Some(Fault::Range { number: 3, .. })), "{start} to {end}");
    }
    for (start, end) in [(4095, 5000), (2047, 2048), (2048, 4095), (3000, 3000), (first, last)] {
        assert_eq!(with(start, end), Some(Fault::Overlap(1, 3)), "{start} to {end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the headers say, with right checksums: what is read is within the disk (the image asserts it), and what
    /// is found is within the disk and apart from each other.
    #[test]
    fn no_header_makes_the_reader_leave_the_disk(
        large in any::<bool>(),
        changes in prop::collection::vec((0_usize..128, any::<u64>(), any::<bool>()), 1..4),
        shift in 0_u32..64,
    ) {
        let [small, big] = both();
        let mut image = if large { big } else { small };
        for (at, value, backup) in changes {
            let header = if backup { image.last() } else { 1 };
            image.change(header, |block| {
                let bytes = (value >> shift).to_le_bytes();
                let at = at.min(block.len() - 8);
                block[at..at + 8].copy_from_slice(&bytes);
            });
        }
        if let Ok(table) = image.read() {
            let blocks = image.shape().blocks;
            for p in &table.partitions {
                prop_assert!(p.blocks > 0 && p.first > 1 && p.first + p.blocks < blocks);
                for q in table.partitions.iter().filter(|q| q.number != p.number) {
                    prop_assert!(p.first + p.blocks <= q.first || q.first + q.blocks <= p.first);
                }
            }
        }
    }
}
