//! One copy damaged, both damaged, tables for the other block size.

use std::string::ToString as _;

use super::{FDISK_4096, Image, SGDISK_512, both};
use crate::{Damage, Fault, Header, Refusal};

#[test]
fn with_one_copy_damaged_the_other_is_used_and_the_damage_is_named() {
    for image in both() {
        let good = image.clone().read().expect("a table").partitions;
        let (array, last) = (2, image.last());
        let backup_array = image.clone().at(last)[72..80].try_into().map(u64::from_le_bytes).expect("eight");
        for (block, byte, which) in [
            (1, 0, Header::Primary),
            (1, 40, Header::Primary),
            (array, 33, Header::Primary),
            (last, 0, Header::Backup),
            (last, 24, Header::Backup),
            (backup_array, 57, Header::Backup),
        ] {
            let mut image = image.clone();
            image.at(block)[byte] ^= 1;
            let table = image.read().expect("the other copy");
            assert_eq!(table.partitions, good);
            let Some(Damage::Copy(damaged, fault)) = table.damage else { panic!("{:?}", table.damage) };
            assert_eq!(damaged, which, "block {block}, byte {byte}");
            let is_right = match byte {
                0 => fault == Fault::NoHeader(block),
                40 | 24 => matches!(fault, Fault::HeaderSum { .. }),
                _ => matches!(fault, Fault::ArraySum { .. }),
            };
            assert!(is_right, "{fault}");
        }
    }
}

#[test]
fn a_block_that_cannot_be_read_is_damage_like_any_other() {
    for mut image in both() {
        image.bad = [1].into();
        let table = image.read().expect("the backup");
        let said = table.damage.expect("named").to_string();
        assert!(
            said.contains("primary copy of its partition table is damaged: block 1 cannot be read: medium"),
            "{said}"
        );
        image.bad = [0].into();
        assert_eq!(image.read(), Err(Refusal::Unreadable("medium error at 0".into())));
    }
}

#[test]
fn with_both_copies_damaged_both_are_named() {
    for mut image in both() {
        let last = image.last();
        image.at(1)[40] ^= 1;
        image.at(last)[..8].fill(0);
        let said = image.read().expect_err("no copy is good").to_string();
        assert!(
            said.contains("both copies of its partition table are damaged: the primary: the header's checksum"),
            "{said}"
        );
        assert!(said.contains(&std::format!("the backup: block {last} has no header")), "{said}");
    }
}

#[test]
fn a_table_for_blocks_of_the_other_size_is_named() {
    let mut large = Image::load(SGDISK_512, 4096);
    assert_eq!(large.read(), Err(Refusal::BlockSize { table: 512, disk: 4096 }));
    let mut small = Image::load(FDISK_4096, 512);
    let said = small.read().expect_err("4,096").to_string();
    assert_eq!(said, "its partition table is for blocks of 4096 bytes; its blocks have 512 bytes");
}

#[test]
fn a_disk_without_a_table_says_so() {
    for block in [512, 4096] {
        let mut empty = Image { bytes: std::vec![0; 64 * block], block, bad: [].into() };
        assert_eq!(empty.read(), Err(Refusal::NoTable));
        empty.bytes.truncate(5 * block);
        assert!(matches!(empty.read(), Err(Refusal::Shape(_))));
    }
}

#[test]
fn a_header_that_block_0_does_not_protect_is_refused() {
    for image in both() {
        // Overwritten, of another type, or for other blocks.
        for (at, value) in [(510, 0), (450, 0x83), (454, 2)] {
            let mut image = image.clone();
            image.at(0)[at] = value;
            assert_eq!(image.read(), Err(Refusal::NotProtected));
        }
        // A hybrid MBR has more records.
        let mut image = image;
        image.at(0).copy_within(446..462, 462);
        image.at(0)[450] = 0x0c;
        assert!(image.read().is_ok());
    }
}

#[test]
fn two_good_copies_that_differ_are_refused() {
    for mut image in both() {
        // What an interrupted change leaves: the backup is new, the primary old.
        let last = image.last();
        let array = image.at(last)[72..80].try_into().map(u64::from_le_bytes).expect("eight");
        image.at(array)[56] = b'x';
        image.change(last, |_| {});
        assert_eq!(image.read(), Err(Refusal::Different));
    }
}

#[test]
fn a_disk_that_has_grown_keeps_its_table() {
    for mut image in both() {
        let end = image.last();
        let grown = image.bytes.len() + 16 * image.block;
        image.bytes.resize(grown, 0);
        assert_eq!(image.read().expect("a table").damage, Some(Damage::NotAtEnd(end)));
    }
}
