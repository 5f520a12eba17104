//! Tests of the instructions that touch device registers.

use super::alu::{CF, OF, PF, SF, STATUS, ZF};
use super::*;
use crate::testing::FakeVcpu;
use memory::guest::testing::memory;
use proptest::prelude::*;

const DEVICE: u64 = 0xc000_0000;

/// Remembers every access; answers reads with a pattern.
#[derive(Default)]
struct Recorder {
    reads: Vec<(u64, u8)>,
    writes: Vec<(u64, u8, u64)>,
    answer: u64,
}

impl Bus for Recorder {
    fn read(&mut self, gpa: u64, size: u8) -> u64 {
        self.reads.push((gpa, size));
        self.answer
    }

    fn write(&mut self, gpa: u64, size: u8, value: u64) {
        self.writes.push((gpa, size, value));
    }
}

fn run(code: &[u8], prepare: impl FnOnce(&mut FakeVcpu, &GuestMemory)) -> (FakeVcpu, Recorder, GuestMemory) {
    let m = memory(0, 0x10000);
    let mut v = FakeVcpu::long_mode().at_code(&m, code);
    v.gprs.rbx = DEVICE;
    prepare(&mut v, &m);
    let mut bus = Recorder { answer: 0x8877_6655_4433_2211, ..Recorder::default() };
    emulate(&mut v, &m, DEVICE + 0x10, &mut bus).unwrap_or_else(|e| panic!("{code:02x?}: {e:?}"));
    (v, bus, m)
}

#[test]
fn loads_of_every_width_reach_the_register_as_the_manual_says() {
    let all = u64::MAX;
    for (code, size, expected) in [
        (&[0x8a, 0x43, 0x10][..], 1, 0xffff_ffff_ffff_ff11), // mov al, [rbx+16]
        (&[0x66, 0x8b, 0x43, 0x10], 2, 0xffff_ffff_ffff_2211),
        (&[0x8b, 0x43, 0x10], 4, 0x4433_2211),
        (&[0x48, 0x8b, 0x43, 0x10], 8, 0x8877_6655_4433_2211),
        (&[0x0f, 0xb6, 0x43, 0x10], 1, 0x11),         // movzx eax, byte
        (&[0x48, 0x0f, 0xb7, 0x43, 0x10], 2, 0x2211), // movzx rax, word
        (&[0x48, 0x63, 0x43, 0x10], 4, 0x4433_2211),  // movsxd rax, dword
    ] {
        let (v, bus, _) = run(code, |v, _| v.gprs.rax = all);
        assert_eq!(bus.reads, [(DEVICE + 0x10, size)], "{code:02x?}");
        assert!(bus.writes.is_empty());
        assert_eq!(v.gprs.rax, expected, "{code:02x?}");
        assert_eq!(v.rip, 0x1000 + code.len() as u64);
    }
    let m = memory(0, 0x10000);
    let mut v = FakeVcpu::long_mode().at_code(&m, &[0x0f, 0xbe, 0x43, 0x10]); // movsx eax, byte
    v.gprs.rbx = DEVICE;
    emulate(&mut v, &m, DEVICE, &mut Recorder { answer: 0x80, ..Recorder::default() }).unwrap();
    assert_eq!(v.gprs.rax, 0xffff_ff80);
}

#[test]
fn stores_of_every_width_reach_the_device_once() {
    for (code, size, value) in [
        (&[0x88, 0x63, 0x10][..], 1, 0x77), // mov [rbx+16], ah
        (&[0x66, 0x89, 0x43, 0x10], 2, 0x7788),
        (&[0x89, 0x43, 0x10], 4, 0x5566_7788),
        (&[0x48, 0x89, 0x43, 0x10], 8, 0x1122_3344_5566_7788),
        (&[0xc6, 0x43, 0x10, 0xfe], 1, 0xfe),
        (&[0xc7, 0x43, 0x10, 0x04, 0x03, 0x02, 0x01], 4, 0x0102_0304),
        (&[0x48, 0xc7, 0x43, 0x10, 0xff, 0xff, 0xff, 0xff], 8, u64::MAX), // imm32, sign-extended
    ] {
        let (v, bus, _) = run(code, |v, _| v.gprs.rax = 0x1122_3344_5566_7788);
        assert_eq!(bus.writes, [(DEVICE + 0x10, size, value)], "{code:02x?}");
        assert!(bus.reads.is_empty(), "a store does not read");
        assert_eq!(v.rip, 0x1000 + code.len() as u64);
    }
}

#[test]
fn every_way_to_form_an_address_is_understood() {
    // [rbx + rcx*4 + 8], [rip + disp], gs:[rcx], [disp32 sign-extended], eax-sized, moffs.
    let (_, bus, _) = run(&[0x8b, 0x44, 0x8b, 0x08], |v, _| v.gprs.rcx = 2);
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
    let displacement = (DEVICE + 0x10).wrapping_sub(0x1006) as u32;
    let mut code = vec![0x8b, 0x05];
    code.extend(displacement.to_le_bytes());
    let (_, bus, _) = run(&code, |v, _| {
        // A page table that maps the sign-extended address is not needed: without paging, bits above 31 fall away.
        v.rip = 0x1000;
    });
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
    let (_, bus, _) = run(&[0x65, 0x8b, 0x01], |v, _| {
        v.segments[SegmentName::Gs as usize].base = DEVICE;
        v.gprs.rcx = 0x10;
    });
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
    let (_, bus, _) = run(&[0x67, 0x8b, 0x43, 0x10], |v, _| v.gprs.rbx |= 0xffff_ffff_0000_0000);
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
    let mut code = vec![0xa1];
    code.extend((DEVICE + 0x10).to_le_bytes());
    let (_, bus, _) = run(&code, |_, _| {});
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
}

#[test]
fn a_displacement_without_base_is_sign_extended_in_64_bit_mode() {
    let m = memory(0, 0x10000);
    // mov eax, [0xffff_ffff_ff20_0010]; that address maps to the device by a 2 MiB page.
    let mut v = FakeVcpu::long_mode().at_code(&m, &[0x8b, 0x04, 0x25, 0x10, 0x00, 0x20, 0xff]);
    (v.cr0, v.cr3, v.cr4) = (1 << 31 | 1, 0x2000, 0x20);
    for (at, entry) in [(0x2ff8, 0x3003), (0x3ff8, 0x4003), (0x4000 + 0x1f9 * 8, DEVICE | 0x83)] {
        m.write_u64(at, entry).unwrap();
    }
    for (at, entry) in [(0x2000, 0x5003), (0x5000, 0x6003), (0x6000, 0x83)] {
        m.write_u64(at, entry).unwrap();
    }
    let mut bus = Recorder::default();
    assert_eq!(emulate(&mut v, &m, DEVICE + 0x10, &mut bus), Ok(()));
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
}

#[test]
fn read_modify_write_reads_once_and_writes_once() {
    // or dword [rbx+16], 0x0f
    let (v, bus, _) = run(&[0x83, 0x4b, 0x10, 0x0f], |_, _| {});
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
    assert_eq!(bus.writes, [(DEVICE + 0x10, 4, 0x4433_221f)]);
    assert_eq!(v.rflags & STATUS, 0, "0x1f has an odd number of bits");
    // xchg [rbx+16], eax
    let (v, bus, _) = run(&[0x87, 0x43, 0x10], |v, _| v.gprs.rax = 5);
    assert_eq!((bus.reads.len(), &bus.writes[..]), (1, &[(DEVICE + 0x10, 4, 5)][..]));
    assert_eq!(v.gprs.rax, 0x4433_2211);
    // and eax, [rbx+16]
    let (v, bus, _) = run(&[0x23, 0x43, 0x10], |v, _| v.gprs.rax = 0xff);
    assert!(bus.writes.is_empty());
    assert_eq!(v.gprs.rax, 0x11);
    // not byte [rbx+16] leaves the flags
    let (v, bus, _) = run(&[0xf6, 0x53, 0x10], |v, _| v.rflags = 0x8d7);
    assert_eq!(bus.writes, [(DEVICE + 0x10, 1, 0xee)]);
    assert_eq!(v.rflags, 0x8d7);
    // bts dword [rbx+16], 2
    let (v, bus, _) = run(&[0x0f, 0xba, 0x6b, 0x10, 0x02], |_, _| {});
    assert_eq!(bus.writes, [(DEVICE + 0x10, 4, 0x4433_2215)]);
    assert_eq!(v.rflags & CF, 0);
}

#[test]
fn carries_go_in_and_come_out() {
    // adc dword [rbx+16], eax; sbb eax, [rbx+16]; neg dword [rbx+16]
    let (v, bus, _) = run(&[0x11, 0x43, 0x10], |v, _| (v.gprs.rax, v.rflags) = (0xbbcc_ddee, 0x203));
    assert_eq!(bus.writes, [(DEVICE + 0x10, 4, 0)]);
    assert_eq!(v.rflags & (CF | ZF), CF | ZF);
    let (v, bus, _) = run(&[0x1b, 0x43, 0x10], |v, _| (v.gprs.rax, v.rflags) = (0x4433_2211, 0x203));
    assert_eq!((v.gprs.rax, v.rflags & (CF | SF)), (0xffff_ffff, CF | SF));
    assert!(bus.writes.is_empty());
    let (v, bus, _) = run(&[0xf7, 0x5b, 0x10], |_, _| {});
    assert_eq!((bus.writes[0].2, v.rflags & CF), (0xbbcc_ddef, CF));
}

#[test]
fn an_exchange_and_add_returns_the_old_value() {
    // lock xadd [rbx+16], ecx
    let (v, bus, _) = run(&[0xf0, 0x0f, 0xc1, 0x4b, 0x10], |v, _| v.gprs.rcx = u64::MAX);
    assert_eq!((&bus.reads[..], &bus.writes[..]), (&[(DEVICE + 0x10, 4)][..], &[(DEVICE + 0x10, 4, 0x4433_2210)][..]));
    assert_eq!((v.gprs.rcx, v.rflags & CF), (0x4433_2211, CF));
}

#[test]
fn a_compare_and_exchange_writes_in_either_case() {
    // lock cmpxchg [rbx+16], ecx
    let code = [0xf0, 0x0f, 0xb1, 0x4b, 0x10];
    let (v, bus, _) = run(&code, |v, _| (v.gprs.rax, v.gprs.rcx) = (0x1_4433_2211, 7));
    assert_eq!(bus.writes, [(DEVICE + 0x10, 4, 7)]);
    assert_eq!((v.gprs.rax, v.rflags & ZF), (0x1_4433_2211, ZF), "the accumulator is not written");
    let (v, bus, _) = run(&code, |v, _| (v.gprs.rax, v.gprs.rcx) = (0x1_0000_0001, 7));
    assert_eq!(bus.writes, [(DEVICE + 0x10, 4, 0x4433_2211)]);
    assert_eq!((v.gprs.rax, v.rflags & (ZF | CF)), (0x4433_2211, CF), "1 is less than what was there");
}

#[test]
fn a_bit_number_in_a_register_reaches_beyond_the_operand() {
    // btc [rbx+16], ecx; bts [rbx+16], rcx; btr word [rbx+16], cx
    let (v, bus, _) = run(&[0x0f, 0xbb, 0x4b, 0x10], |v, _| v.gprs.rcx = 33);
    assert_eq!(bus.writes, [(DEVICE + 0x14, 4, 0x4433_2213)]);
    assert_eq!(v.rflags & CF, 0);
    let (_, bus, _) = run(&[0x48, 0x0f, 0xab, 0x4b, 0x10], |v, _| v.gprs.rcx = -1_i64 as u64);
    assert_eq!(bus.writes, [(DEVICE + 8, 8, 0x8877_6655_4433_2211)], "the numbers are signed; bit 63 was set");
    let (v, bus, _) = run(&[0x66, 0x0f, 0xb3, 0x4b, 0x10], |v, _| v.gprs.rcx = 0xfff4);
    assert_eq!((bus.writes[0], v.rflags & CF), ((DEVICE + 0xe, 2, 0x2201), CF), "bit -12 is bit 4 of the word before");
}

#[test]
fn comparisons_set_flags_and_write_nothing() {
    // test byte [rbx+16], 0x11; cmp dword [rbx+16], eax
    let (v, bus, _) = run(&[0xf6, 0x43, 0x10, 0x22], |v, _| v.rflags |= CF | OF);
    assert_eq!(v.rflags & STATUS, ZF | PF);
    assert!(bus.writes.is_empty());
    let (v, bus, _) = run(&[0x39, 0x43, 0x10], |v, _| v.gprs.rax = 0x4433_2211);
    assert_eq!(v.rflags & STATUS, ZF | PF);
    assert!(bus.writes.is_empty());
    let (v, ..) = run(&[0x3b, 0x43, 0x10], |v, _| v.gprs.rax = 0); // cmp eax, [rbx+16]
    assert_eq!(v.rflags & (CF | ZF | SF), CF | SF);
}

#[test]
fn string_moves_take_one_element_an_exit() {
    // rep movsd: from the device into memory
    let prepare = |v: &mut FakeVcpu, _: &GuestMemory| {
        (v.gprs.rsi, v.gprs.rdi, v.gprs.rcx) = (DEVICE + 0x10, 0x4000, 2);
    };
    let (v, bus, m) = run(&[0xf3, 0xa5], prepare);
    assert_eq!(bus.reads, [(DEVICE + 0x10, 4)]);
    assert_eq!(m.read_u32(0x4000), Ok(0x4433_2211));
    assert_eq!((v.gprs.rsi, v.gprs.rdi, v.gprs.rcx, v.rip), (DEVICE + 0x14, 0x4004, 1, 0x1000));
    // stosb with the direction flag set, the last of a REP
    let (v, bus, _) = run(&[0xf3, 0xaa], |v, _| {
        (v.gprs.rax, v.gprs.rdi, v.gprs.rcx) = (0xabcd, DEVICE + 0x10, 1);
        v.rflags |= DF;
    });
    assert_eq!(bus.writes, [(DEVICE + 0x10, 1, 0xcd)]);
    assert_eq!((v.gprs.rdi, v.gprs.rcx, v.rip), (DEVICE + 0xf, 0, 0x1002));
}

#[test]
fn an_instruction_that_touches_another_page_does_nothing() {
    let m = memory(0, 0x10000);
    let mut v = FakeVcpu::long_mode().at_code(&m, &[0x89, 0x03]); // mov [rbx], eax
    v.gprs.rbx = DEVICE + 0x1000;
    let mut bus = Recorder::default();
    assert_eq!(emulate(&mut v, &m, DEVICE, &mut bus), Err(Undecodable::Changed));
    assert!(bus.writes.is_empty());
    assert_eq!(v.rip, 0x1000);
}

#[test]
fn an_unknown_instruction_does_nothing() {
    let m = memory(0, 0x10000);
    // movups [rbx], xmm0; shl dword [rbx], 1; cmpxchg8b [rbx]; an access across two pages
    for (code, rbx) in [
        (&[0x0f, 0x11, 0x03][..], DEVICE),
        (&[0xd1, 0x23], DEVICE),
        (&[0x0f, 0xc7, 0x0b], DEVICE),
        (&[0x89, 0x03], DEVICE + 0xffe),
    ] {
        let mut v = FakeVcpu::long_mode().at_code(&m, code);
        v.gprs.rbx = rbx;
        let mut bus = Recorder::default();
        assert_eq!(emulate(&mut v, &m, DEVICE, &mut bus), Err(Undecodable::Invalid), "{code:02x?}");
        assert!(bus.reads.is_empty() && bus.writes.is_empty());
    }
}

proptest! {
    #[test]
    fn no_instruction_panics_or_touches_the_device_twice(
        code: [u8; 15], registers: [u16; 16], long: bool, wide: bool, answer: u64,
    ) {
        let m = memory(0, 0x10000);
        let mut v = FakeVcpu::long_mode().at_code(&m, &code);
        let attributes = &mut v.segments[SegmentName::Cs as usize].attributes;
        attributes.set_long(long);
        attributes.set_default_32(wide);
        for (i, r) in registers.iter().enumerate() {
            v.gprs.set(i as u8, DEVICE + u64::from(*r & 0xfff));
        }
        let mut bus = Recorder { answer, ..Recorder::default() };
        let result = emulate(&mut v, &m, DEVICE, &mut bus);
        prop_assert!(bus.reads.len() <= 1 && bus.writes.len() <= 1);
        prop_assert!(result.is_ok() || bus.reads.is_empty() && bus.writes.is_empty());
    }
}
