//! Tests of the ELF reader: what it takes, and every field that it checks.

use super::image::{Image, note};
use super::*;
use proptest::prelude::*;

const ENTRY: u32 = 0x10_0008;

fn error(file: &[u8]) -> Error {
    Elf::parse(file).expect_err("it was taken")
}

#[test]
fn both_classes_and_both_machines_start_by_their_note() {
    for wide in [false, true] {
        for machine in [3, 62] {
            let file = Image { machine, ..Image::new(wide, ENTRY) }.bytes();
            let elf = Elf::parse(&file).unwrap();
            assert_eq!(elf.entry, ENTRY);
            let [segment] = elf.segments[..] else { panic!("{:?}", elf.segments) };
            assert_eq!(
                (segment.address, segment.size, elf.bytes(&segment)),
                (0x10_0000, 0x1000, &b"sixteen bytes!!!"[..])
            );
        }
    }
}

#[test]
fn descriptors_of_4_and_8_bytes_are_found_among_other_notes_with_either_padding() {
    for align in [4, 8] {
        for descriptor in [&ENTRY.to_le_bytes()[..], &u64::from(ENTRY).to_le_bytes()] {
            let mut notes = note(b"GNU\0", 18, b"not this", align);
            notes.extend(note(b"Xen\0", 5, b"nor this", align));
            notes.extend(note(b"Linux\0", 257, &[1], align));
            notes.extend(note(b"Xen\0", 18, descriptor, align));
            let file = Image { notes: (notes, align as u64), ..Image::new(true, 0) }.bytes();
            assert_eq!(Elf::parse(&file).unwrap().entry, ENTRY, "{align} {descriptor:x?}");
        }
    }
}

#[test]
fn a_note_that_names_no_entry_is_an_error_with_its_place() {
    let with = |notes: std::vec::Vec<u8>| error(&Image { notes: (notes, 4), ..Image::new(true, 0) }.bytes());
    assert_eq!(with(vec![]), Error::NoEntry);
    assert_eq!(with(note(b"Xen\0", 17, &[0; 4], 4)), Error::NoEntry);
    assert_eq!(with(note(b"Xen", 18, &[0; 4], 4)), Error::NoEntry, "the owner has a zero");
    let cut = note(b"Xen\0", 18, &[0; 4], 4);
    assert_eq!(with(cut[..cut.len() - 1].to_vec()), Error::NoEntry);
    // Two program headers come before the notes.
    let start = 64 + 2 * 56;
    let size = Error::Field { name: "a PVH note's descsz", offset: start + 4, value: 2, expected: "4 or 8 bytes" };
    assert_eq!(with(note(b"Xen\0", 18, &[0; 2], 4)), size);
    let high = Error::Field {
        name: "a PVH note's entry",
        offset: start + 16,
        value: 1 << 32,
        expected: "an address below 4 GiB",
    };
    assert_eq!(with(note(b"Xen\0", 18, &(1_u64 << 32).to_le_bytes(), 4)), high);
    let mut two = note(b"Xen\0", 18, &1_u32.to_le_bytes(), 4);
    two.extend(note(b"Xen\0", 18, &2_u32.to_le_bytes(), 4));
    assert_eq!(with(two), Error::TwoEntries { first: 1, second: 2 });
}

#[test]
fn every_field_of_the_header_is_checked() {
    let wrong: [(usize, &[u8], &str); 9] = [
        (0, b"\x7eELF", "the magic number"),
        (4, &[3], "EI_CLASS"),
        (5, &[2], "EI_DATA"),
        (6, &[0], "EI_VERSION"),
        (16, &[3, 0], "e_type"),
        (18, &[40, 0], "e_machine"),
        (32, &[0xff; 8], "e_phoff"),
        (54, &[57, 0], "e_phentsize"),
        (56, &[65, 0], "e_phnum"),
    ];
    for (at, bytes, name) in wrong {
        let mut file = Image::new(true, ENTRY).bytes();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        match error(&file) {
            Error::Field { name: found, offset, .. } => assert_eq!((found, offset), (name, at as u64)),
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn every_field_of_a_segment_is_checked() {
    // The second program header: p_offset, p_paddr, p_filesz, p_memsz.
    let header = 64 + 56;
    let with = |at: usize, value: u64| {
        let mut file = Image::new(true, ENTRY).bytes();
        file[header + at..header + at + 8].copy_from_slice(&value.to_le_bytes());
        error(&file)
    };
    let len = Image::new(true, ENTRY).bytes().len() as u64;
    assert_eq!(with(8, len), Error::TooShort { len, needed: len + 16, what: "a segment" });
    let field = |name, at: usize, value, expected| Error::Field { name, offset: (header + at) as u64, value, expected };
    assert_eq!(with(8, u64::MAX), field("p_offset", 8, u64::MAX, "an offset in the file"));
    assert_eq!(with(24, u64::MAX - 5), field("p_paddr", 24, u64::MAX - 5, "an end below 2^64"));
    assert!(matches!(with(32, 1 << 20), Error::TooShort { what: "a segment", .. }));
    assert_eq!(with(40, 15), field("p_memsz", 40, 15, "at least p_filesz"));
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    for wide in [false, true] {
        let file = Image::new(wide, ENTRY).bytes();
        for len in 0..file.len() {
            let e = error(&file[..len]);
            assert!(matches!(e, Error::TooShort { len: had, needed, .. } if had == len as u64 && needed > had), "{e}");
        }
    }
}

#[test]
fn a_file_without_segments_or_with_too_many_is_refused() {
    let with = |count| error(&Image { segments: vec![(0x10_0000, 16, vec![0]); count], ..Image::new(true, 0) }.bytes());
    assert_eq!(with(0), Error::NoSegments);
    assert_eq!(with(MAX_SEGMENTS + 1), Error::TooManySegments);
}

#[test]
fn a_file_is_recognised_by_its_first_bytes() {
    assert!(is_elf(&Image::new(false, 0).bytes()));
    assert!(!is_elf(b"") && !is_elf(b"\x7fEL") && !is_elf(b"MZ and so on"));
}

proptest! {
    #[test]
    fn a_damaged_file_is_read_or_refused(
        wide: bool,
        damage in proptest::collection::vec((0_usize..260, any::<u8>()), 0..8),
    ) {
        let mut file = Image::new(wide, ENTRY).bytes();
        let len = file.len();
        for (at, byte) in damage {
            file[at % len] = byte;
        }
        if let Ok(elf) = Elf::parse(&file) {
            for segment in &elf.segments {
                prop_assert_eq!(elf.bytes(segment).len() as u64, segment.file_size);
                prop_assert!(segment.size >= segment.file_size.max(1));
                prop_assert!(segment.address.checked_add(segment.size).is_some());
            }
        }
    }
}
