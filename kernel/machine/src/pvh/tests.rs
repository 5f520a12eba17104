//! Tests of the PVH loader: what a guest finds in its memory, and what is refused.

use super::*;
use crate::{elf::image::Image, vcpu::SegmentAttributes};
use memory::guest::testing::memory;

const MIB: u64 = 1 << 20;
const ENTRY: u32 = 0x10_0008;

fn pvh(file: &[u8]) -> Pvh<'_> {
    Pvh { file, initrd: None, command_line: "console=ttyS0 quiet" }
}

fn error(memory: &GuestMemory, image: &Image) -> Error {
    load(memory, &pvh(&image.bytes())).expect_err("it was taken")
}

fn text(m: &GuestMemory, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    m.read(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_guest_begins_in_32_bit_mode_without_paging_and_ebx_points_to_the_start_info() {
    let m = memory(0, 8 << 20);
    let (state, placement) = load(&m, &pvh(&Image::new(true, ENTRY).bytes())).unwrap();
    assert_eq!((state.rip, state.gprs.rbx), (u64::from(ENTRY), BOOT_INFO));
    assert_eq!((state.cr0 & 0x8000_0001, state.cr4, state.efer, state.rflags), (1, 0, 0, 2));
    let flags = |a: SegmentAttributes| (a.kind(), a.code_or_data(), a.long(), a.default_32(), a.granularity());
    assert_eq!(flags(state.cs.attributes), (0xb, true, false, true, true));
    assert_eq!(flags(state.data.attributes), (0x3, true, false, true, true));
    for segment in [state.cs, state.data] {
        assert_eq!((segment.base, segment.limit), (0, 0xffff_ffff));
    }
    // Xen's ABI: a 32-bit TSS of limit 0x67 at 0.
    assert_eq!((state.tr.attributes.kind(), state.tr.limit, state.tr.base), (0xb, 0x67, 0));
    assert_eq!(placement, Placement { kernel: 0x10_0000, initrd: None });
}

#[test]
fn segments_are_loaded_with_zeroes_after_their_bytes() {
    let m = memory(0, 8 << 20);
    m.write(0x10_0000, &[0xaa; 0x2000]).unwrap();
    load(&m, &pvh(&Image::new(false, ENTRY).bytes())).unwrap();
    assert_eq!(text(&m, 0x10_0000, 16), b"sixteen bytes!!!");
    assert_eq!(text(&m, 0x10_0010, 0xff0), [0; 0xff0]);
    assert_eq!(m.read_u8(0x10_1000), Ok(0xaa), "nothing is written after the segment");
}

#[test]
fn the_start_info_has_what_the_abi_wants() {
    let m = memory(0, 8 << 20);
    let file = Image::new(true, ENTRY).bytes();
    let (state, placement) = load(&m, &Pvh { initrd: Some(b"an initrd"), ..pvh(&file) }).unwrap();
    let info = state.gprs.rbx;
    let word = |at| m.read_u32(info + at).unwrap();
    let long = |at| m.read_u64(info + at).unwrap();
    assert_eq!((word(0), word(4), word(8)), (0x336e_c578, 1, 0), "magic, version, flags");
    assert_eq!(text(&m, long(24), 20), b"console=ttyS0 quiet\0");
    assert_eq!(long(32), TABLES, "the ACPI root pointer");
    let (at, len) = placement.initrd.unwrap();
    assert_eq!((at, len), (8 * MIB - 0x1000, 9));
    assert_eq!(text(&m, at, 9), b"an initrd");
    assert_eq!(word(12), 1, "modules");
    let module = long(16);
    let module: Vec<_> = (0..4).map(|i| m.read_u64(module + 8 * i).unwrap()).collect();
    assert_eq!(module, [at, len, 0, 0]);
}

#[test]
fn the_memory_map_leaves_out_what_is_taken() {
    let m = memory(0, 8 << 20);
    let (state, _) = load(&m, &pvh(&Image::new(true, ENTRY).bytes())).unwrap();
    let info = state.gprs.rbx;
    let (map, entries) = (m.read_u64(info + 40).unwrap(), m.read_u32(info + 48).unwrap());
    let mut entries: Vec<_> = (0..u64::from(entries))
        .map(|i| map + i * 24)
        .map(|at| (m.read_u64(at).unwrap(), m.read_u64(at + 8).unwrap(), m.read_u32(at + 16).unwrap()))
        .collect();
    entries.sort_unstable();
    assert_eq!(
        entries,
        [
            (0, 0x1_0000, 1),
            (0x1_0000, 0x2_0000, 2),
            (0x3_0000, 0x7_0000, 1),
            (0xa_0000, 0x6_0000, 2),
            (0x10_0000, 7 * MIB, 1),
            (layout::ECAM, layout::ECAM_SIZE, 2),
        ]
    );
}

/// The places that EDK2 and rust-hypervisor-firmware use before they know the memory map: README.md.
#[test]
fn nothing_is_where_firmware_takes_memory() {
    let taken = [0x6000..0x7000, 0x7000..0x8000, 0x4_b000..0x5_b000, 0x8_0000..0x10_0000];
    for ours in [BOOT_INFO..TABLES, TABLES..TABLES_END] {
        assert!(taken.iter().all(|range| range.end <= ours.start || ours.end <= range.start), "{ours:x?}");
    }
}

#[test]
fn a_segment_outside_memory_is_refused_with_its_place() {
    let m = memory(0, 2 << 20);
    for (address, size) in [(0xf_ff00, 0x1000), (0, 0x1000), (0x1f_f001, 0x1000), (0xe000_0000, 1), (1 << 40, 1)] {
        let image = Image { segments: vec![(address, size, vec![1])], ..Image::new(true, ENTRY) };
        let refused = Error::OutsideMemory { header: 64 + 56, address, size, room: 2 << 20 };
        assert_eq!(error(&m, &image), refused);
    }
    assert_eq!(text(&m, 0, 2 << 20), vec![0; 2 << 20], "nothing is written");
}

#[test]
fn segments_that_overlap_are_refused() {
    let m = memory(0, 4 << 20);
    let two = |second| Image {
        segments: vec![(0x10_0000, 0x1000, vec![1]), (second, 0x1000, vec![2])],
        ..Image::new(true, ENTRY)
    };
    for (second, address) in [(0x10_0fff, 0x10_0fff), (0x10_0000, 0x10_0000)] {
        let overlap = Error::Overlap { first: 64 + 56, second: 64 + 2 * 56, address };
        assert_eq!(error(&m, &two(second)), overlap);
    }
    load(&m, &pvh(&two(0x10_1000).bytes())).unwrap();
}

#[test]
fn an_entry_outside_all_segments_is_refused() {
    let m = memory(0, 4 << 20);
    for entry in [0, 0xf_ffff, 0x10_1000, u32::MAX] {
        assert_eq!(error(&m, &Image::new(true, entry)), Error::EntryOutside { entry: entry.into() });
    }
}

#[test]
fn an_initrd_or_a_command_line_without_room_is_refused() {
    let m = memory(0, 2 << 20);
    let file = Image::new(true, ENTRY).bytes();
    let large = vec![1; 1 << 20];
    let no_room = Error::NoRoomForInitrd { len: 1 << 20, from: 0x10_1000, to: 2 << 20 };
    assert_eq!(load(&m, &Pvh { initrd: Some(&large), ..pvh(&file) }).err(), Some(no_room));
    let line = "x".repeat(0xe000);
    let too_long = Error::CommandLineTooLong { len: 0xe000, limit: 0xdfff };
    assert_eq!(load(&m, &Pvh { command_line: &line, ..pvh(&file) }).err(), Some(too_long));
    let with_zero = Pvh { command_line: "a\0b", ..pvh(&file) };
    assert_eq!(load(&m, &with_zero).err(), Some(Error::CommandLineHasZero { at: 1 }));
    assert!(matches!(load(&GuestMemory::new(), &pvh(&file)), Err(Error::OutsideMemory { room: 0, .. })));
}
