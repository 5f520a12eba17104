//! Tests of the Linux loader.

use super::*;
use memory::guest::testing::memory;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// The smallest file that passes for a kernel: 1 setup sector and 4 KiB of code, to be loaded at 16 MiB.
fn image() -> Vec<u8> {
    let mut file = vec![0; 1024 + 4096];
    let mut set = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);
    set(0x1f1, &[1]);
    set(0x1fe, &[0x55, 0xaa]);
    set(0x200, &[0xeb, 0x6a]);
    set(0x202, b"HdrS");
    set(0x206, &0x020f_u16.to_le_bytes());
    set(0x211, &[1]);
    set(0x22c, &0x7fff_ffff_u32.to_le_bytes());
    set(0x230, &0x20_0000_u32.to_le_bytes());
    set(0x234, &[1]);
    set(0x236, &[0x7f]);
    set(0x238, &2047_u32.to_le_bytes());
    set(0x258, &(16 * MIB).to_le_bytes());
    set(0x260, &(4 * MIB as u32).to_le_bytes());
    set(1024, b"32-bit entry");
    set(1024 + 0x200, b"64-bit entry");
    file
}

fn linux(kernel: &[u8]) -> Linux<'_> {
    Linux { kernel, initrd: Some(b"an initrd"), command_line: "console=ttyS0 quiet" }
}

#[test]
fn a_kernel_starts_at_its_64_bit_entry_with_everything_where_the_protocol_wants_it() {
    let m = memory(0, 32 << 20);
    let file = image();
    let (state, placement) = load(&m, &linux(&file), 0xe_0000).unwrap();
    assert_eq!(state.rip, 16 * MIB + 0x200);
    let mut entry = [0; 12];
    m.read(state.rip, &mut entry).unwrap();
    assert_eq!(&entry, b"64-bit entry");
    let params = state.gprs.rsi;
    assert_eq!(m.read_u64(params + 0x70), Ok(0xe_0000));
    assert_eq!(m.read_u32(params + 0x202), Ok(0x5372_6448));
    assert_eq!(m.read_u8(params + 0x210), Ok(0xff));
    let (at, len) = placement.initrd.unwrap();
    assert_eq!((at, len), (32 * MIB - 0x1000, 9));
    assert_eq!((m.read_u32(params + 0x218), m.read_u32(params + 0x21c)), (Ok(at as u32), Ok(9)));
    let mut line = [0; 20];
    m.read(m.read_u32(params + 0x228).unwrap().into(), &mut line).unwrap();
    assert_eq!(&line, b"console=ttyS0 quiet\0");
    // CR3: the last byte of 4 GiB is mapped to itself.
    let pdpt = m.read_u64(state.cr3).unwrap() & !0xfff;
    let directory = m.read_u64(pdpt + 3 * 8).unwrap() & !0xfff;
    assert_eq!(m.read_u64(directory + 511 * 8), Ok(0xffe0_0083));
    // The descriptors are those that the segments stand for.
    let (gdt, limit) = state.gdt;
    assert_eq!(limit, 47);
    assert_eq!(m.read_u64(gdt + u64::from(state.cs.selector)), Ok(0x00af_9b00_0000_ffff));
    assert_eq!(m.read_u64(gdt + u64::from(state.data.selector)), Ok(0x00cf_9300_0000_ffff));
}

#[test]
fn the_memory_map_leaves_out_the_firmwares_areas_and_ecam() {
    let mut m = memory(0, 32 << 20);
    let high = memory(0, 2 << 20);
    let mut region = high.regions()[0];
    region.gpa = layout::HIGH_MEMORY;
    // SAFETY: the test memory is leaked, and used through this value alone.
    #[allow(unsafe_code, reason = "tests need a second region")]
    unsafe {
        m.add(region).unwrap();
    }
    let file = image();
    let (state, _) = load(&m, &linux(&file), 0).unwrap();
    let params = state.gprs.rsi;
    let entries: Vec<_> = (0..u64::from(m.read_u8(params + 0x1e8).unwrap()))
        .map(|i| params + 0x2d0 + i * 20)
        .map(|at| (m.read_u64(at).unwrap(), m.read_u64(at + 8).unwrap(), m.read_u32(at + 16).unwrap()))
        .collect();
    assert_eq!(
        entries,
        [
            (0, 0xa_0000, 1),
            (MIB, 31 * MIB, 1),
            (0x1_0000_0000, 2 * MIB, 1),
            (0xa_0000, 0x6_0000, 2),
            (layout::ECAM, layout::ECAM_SIZE, 2),
        ]
    );
}

#[test]
fn a_kernel_moves_down_when_its_preferred_place_is_not_there() {
    let m = memory(0, 8 << 20);
    let mut file = image();
    let (state, _) = load(&m, &linux(&file), 0).unwrap();
    assert_eq!(state.rip, 2 * MIB + 0x200);
    file[0x234] = 0;
    let error = load(&m, &linux(&file), 0).unwrap_err();
    assert_eq!(error, Error::NoRoomForKernel { at: 16 * MIB, needed: 4 * MIB, room: 8 * MIB });
    assert!(error.to_string().contains("0x1000000"), "{error}");
}

#[test]
fn an_initrd_that_does_not_fit_is_refused() {
    let m = memory(0, 32 << 20);
    let file = image();
    let big = vec![0; 13 << 20];
    let error = load(&m, &Linux { initrd: Some(&big), ..linux(&file) }, 0).unwrap_err();
    assert_eq!(error, Error::NoRoomForInitrd { len: 13 * MIB, from: 20 * MIB, to: 32 * MIB });
    assert_eq!(load(&m, &Linux { initrd: Some(&[]), ..linux(&file) }, 0).unwrap().1.initrd, None);
}

#[test]
fn mistakes_in_the_file_are_named_with_value_and_place() {
    let m = memory(0, 32 << 20);
    let broken = |offset: usize, bytes: &[u8]| {
        let mut file = image();
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        load(&m, &linux(&file), 0).unwrap_err().to_string()
    };
    for (offset, bytes, words) in [
        (0x1fe, &[0, 0][..], "boot_flag = 0x0 at byte 0x1fe"),
        (0x202, b"ELF!", "header = 0x21464c45 at byte 0x202"),
        (0x206, &[0x0b, 2], "version = 0x20b at byte 0x206"),
        (0x211, &[0], "zImage"),
        (0x236, &[0xfe], "32-bit kernel"),
        (0x230, &[1, 0, 0, 0], "kernel_alignment = 0x1"),
        (0x201, &[0x10], "jump = 0x10"),
        (0x1f1, &[40], "the kernel file has 5120 bytes"),
        (0x258, &[0xff; 8], "0xffffffffffffffff"),
    ] {
        // A kernel that may be moved has no bad preferred address.
        let message = if offset == 0x258 {
            let mut file = image();
            file[0x258..0x260].copy_from_slice(bytes);
            file[0x234] = 0;
            load(&m, &linux(&file), 0).unwrap_err().to_string()
        } else {
            broken(offset, bytes)
        };
        assert!(message.contains(words), "{message}");
    }
    assert!(matches!(load(&m, &linux(&image()[..0x267]), 0), Err(Error::TooShort { len: 0x267, .. })));
    assert!(matches!(load(&m, &linux(&[]), 0), Err(Error::TooShort { len: 0, .. })));
}

#[test]
fn a_command_line_is_as_long_as_the_kernel_takes_and_no_longer() {
    let m = memory(0, 32 << 20);
    let file = image();
    let line = "x".repeat(2048);
    let with = |command_line| load(&m, &Linux { command_line, ..linux(&file) }, 0).map(|_| ());
    assert_eq!(with(&line[..2047]), Ok(()));
    assert_eq!(with(&line), Err(Error::CommandLineTooLong { len: 2048, limit: 2047 }));
    assert_eq!(with("a\0b"), Err(Error::CommandLineHasZero { at: 1 }));
}

#[test]
fn a_guest_without_memory_below_1_mib_is_refused_and_does_not_panic() {
    let file = image();
    assert!(load(&GuestMemory::new(), &linux(&file), 0).is_err());
    assert!(load(&memory(MIB, 1 << 20), &linux(&file), 0).is_err());
}

proptest! {
    #[test]
    fn no_file_makes_the_loader_panic(
        changes in prop::collection::vec((0x1f0_usize..0x290, any::<u8>()), 0..40), cut in 0_usize..5121, size in 0_usize..5,
    ) {
        let mut file = image();
        for (offset, byte) in changes {
            file[offset] = byte;
        }
        file.truncate(cut.max(0x260));
        let m = memory(0, 0x1000 + (size << 22));
        let _ = load(&m, &linux(&file), u64::MAX);
        let _ = Header::parse(&file[..cut.min(file.len())]);
    }

    #[test]
    fn arbitrary_bytes_are_no_kernel(file: Vec<u8>) {
        prop_assert!(Header::parse(&file).is_err());
    }
}
