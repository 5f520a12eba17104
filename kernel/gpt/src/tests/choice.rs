//! The choice of a partition by name.

use std::vec::Vec;

use super::{Image, SGDISK_512};

#[test]
fn a_partition_is_chosen_by_label_or_guid() {
    let table = Image::load(SGDISK_512, 512).read().expect("a table");
    for (name, number) in [
        ("one", 1),
        ("drei ä", 3),
        ("aaaaaaaa-0000-4000-8000-000000000001", 1),
        ("AAAAAAAA-0000-4000-8000-000000000003", 3),
    ] {
        assert_eq!(table.find(name).map(|p| p.number), Ok(number), "{name}");
    }
    let none = table.find("One").expect_err("labels are compared exactly");
    assert!(none.contains("has no such partition; it has 1 (\"one\", aaaaaaaa-"), "{none}");
    assert!(table.find("aaaaaaaa-0000-4000-8000-000000000002").is_err());
    // The disk's own GUID is no partition's.
    assert!(table.find("11111111-2222-3333-4444-555555555555").is_err());
    // Unused entries have neither label nor GUID.
    assert!(table.find("").is_err() && table.find("00000000-0000-0000-0000-000000000000").is_err());
}

#[test]
fn a_label_of_two_partitions_is_ambiguous_and_both_are_named() {
    let mut image = Image::load(SGDISK_512, 512);
    image.change_entry(2, |entry| {
        entry[56..128].fill(0);
        entry[56..62].copy_from_slice(b"o\0n\0e\0");
    });
    let table = image.read().expect("a table");
    let said = table.find("one").expect_err("two have it");
    assert!(said.contains("2 partitions are meant; expected one of 1 (\"one\", aaaaaaaa"), "{said}");
    assert!(said.contains("3 (\"one\", aaaaaaaa"), "{said}");
    let names: Vec<_> = table.partitions.iter().map(|p| table.name(p)).collect();
    assert_eq!(names, ["aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000003"]);
}

#[test]
fn a_label_that_is_another_partitions_guid_is_ambiguous() {
    let mut image = Image::load(SGDISK_512, 512);
    image.change_entry(2, |entry| {
        entry[56..128].fill(0);
        for (unit, c) in entry[56..].as_chunks_mut::<2>().0.iter_mut().zip(b"aaaaaaaa-0000-4000-8000-000000000001") {
            unit[0] = *c;
        }
    });
    let table = image.read().expect("a table");
    assert!(table.find("aaaaaaaa-0000-4000-8000-000000000001").is_err());
    assert_eq!(table.find("one").map(|p| p.number), Ok(1));
}

#[test]
fn the_text_for_the_configuration_names_its_partition() {
    let mut image = Image::load(SGDISK_512, 512);
    for label in ["plain", "a \"b\"", "\u{1b}[2J", "", "x\\y"] {
        image.change_entry(0, |entry| {
            entry[56..128].fill(0);
            for (unit, c) in entry[56..].as_chunks_mut::<2>().0.iter_mut().zip(label.bytes()) {
                unit[0] = c;
            }
        });
        let table = image.read().expect("a table");
        let name = table.name(&table.partitions[0]);
        assert_eq!(table.find(&name).map(|p| p.number), Ok(1), "{name}");
        assert_eq!(name == label, label == "plain");
        // Nothing that a terminal obeys is in a sentence.
        assert!(!table.find("?").expect_err("none").contains('\u{1b}'));
    }
}
