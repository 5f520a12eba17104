//! Tests of fetching and decoding.

use super::*;
use crate::testing::FakeVcpu;
use memory::guest::testing::memory;
use proptest::prelude::*;

#[test]
fn lengths_of_the_instructions_that_exit_count_their_prefixes() {
    let m = memory(0, 0x10000);
    let cases: &[(&[u8], Mnemonic)] = &[
        (&[0x0f, 0xa2], Mnemonic::Cpuid),
        (&[0x66, 0x0f, 0xa2], Mnemonic::Cpuid),
        (&[0x0f, 0x32], Mnemonic::Rdmsr),
        (&[0x48, 0x0f, 0x30], Mnemonic::Wrmsr),
        (&[0xf4], Mnemonic::Hlt),
        (&[0x0f, 0x01, 0xd9], Mnemonic::Vmmcall),
        (&[0x0f, 0x01, 0xc1], Mnemonic::Vmcall),
        (&[0x0f, 0x01, 0xd1], Mnemonic::Xsetbv),
        (&[0x0f, 0x08], Mnemonic::Invd),
        (&[0x0f, 0x09], Mnemonic::Wbinvd),
        (&[0x44, 0x0f, 0x22, 0xc0], Mnemonic::Mov),
        (&[0xe6, 0x80], Mnemonic::Out),
        (&[0xf3, 0x6e], Mnemonic::Outsb),
    ];
    for (code, mnemonic) in cases {
        let v = FakeVcpu::long_mode().at_code(&m, code);
        assert_eq!(after(&v, &m, |x| x == *mnemonic), Ok(0x1000 + code.len() as u64), "{mnemonic:?}");
        assert_eq!(after(&v, &m, |_| false), Err(Undecodable::Changed));
    }
}

#[test]
fn hardwares_length_spares_the_decoding() {
    let m = memory(0, 0x1000);
    let v = FakeVcpu { rip: 0xdead_beef_0000, length: Some(2), ..FakeVcpu::long_mode() };
    assert_eq!(after(&v, &m, |_| false), Ok(0xdead_beef_0002));
}

#[test]
fn an_instruction_across_two_pages_needs_both() {
    let m = memory(0, 0x10000);
    // Two 4 KiB pages at 0x5000 and 0x6000, the second not present at first.
    for (at, entry) in [(0x1000, 0x2003_u64), (0x2000, 0x3003), (0x3000, 0x4003), (0x4028, 0x9003)] {
        m.write_u64(at, entry).unwrap();
    }
    m.write(0x9ffe, &[0x8b, 0x05]).unwrap(); // mov eax, [rip + disp32]
    m.write(0xb000, &[0x78, 0x56, 0x34, 0x12]).unwrap();
    let v = FakeVcpu { rip: 0x5ffe, cr0: 1 << 31 | 1, cr3: 0x1000, cr4: 0x20, ..FakeVcpu::long_mode() };
    assert_eq!(decode(&v, &m), Err(Undecodable::Fault(PageFault { address: 0x6000, error: 0 })));
    m.write_u64(0x4030, 0xb003).unwrap();
    assert_eq!(decode(&v, &m).unwrap().len(), 6);
    // One that fits into the first page does not care for the second.
    m.write_u64(0x4030, 0).unwrap();
    m.write(0x9ffe, &[0x0f, 0xa2]).unwrap();
    assert_eq!(decode(&v, &m).unwrap().mnemonic(), Mnemonic::Cpuid);
}

#[test]
fn code_outside_memory_is_no_instruction() {
    let m = memory(0, 0x1000);
    let v = FakeVcpu { rip: 0xfee0_0000, ..FakeVcpu::long_mode() };
    assert_eq!(decode(&v, &m), Err(Undecodable::Invalid), "all ones");
}

#[test]
fn the_code_segment_decides_on_16_32_and_64_bits() {
    let mut v = FakeVcpu::long_mode();
    assert_eq!(bitness(&v), 64);
    v.segments[SegmentName::Cs as usize].attributes.set_long(false);
    assert_eq!(bitness(&v), 16);
    v.segments[SegmentName::Cs as usize].attributes.set_default_32(true);
    assert_eq!(bitness(&v), 32);
    v.rip = 0xffff_fffe;
    assert_eq!(next_rip(&v, 3), 1);
}

#[test]
fn byte_registers_are_the_right_bytes() {
    let mut v = FakeVcpu::long_mode();
    v.gprs.rax = 0x1122_3344_5566_7788;
    v.gprs.rsp = 0xff;
    assert_eq!(Gpr::new(Register::AH).unwrap().read(&v), 0x77);
    assert_eq!(Gpr::new(Register::AL).unwrap().read(&v), 0x88);
    assert_eq!(Gpr::new(Register::SPL), Some(Gpr { number: 4, size: 1, high: false }));
    assert_eq!(Gpr::new(Register::R15L), Some(Gpr { number: 15, size: 1, high: false }));
    assert_eq!(Gpr::new(Register::R9D), Some(Gpr { number: 9, size: 4, high: false }));
    assert_eq!(Gpr::new(Register::R15), Some(Gpr { number: 15, size: 8, high: false }));
    assert_eq!(Gpr::new(Register::SI), Some(Gpr { number: 6, size: 2, high: false }));
    assert_eq!(Gpr::new(Register::XMM0), None);
    assert_eq!(Gpr::new(Register::None), None);
    Gpr::new(Register::AH).unwrap().write(&mut v, 0xab);
    assert_eq!(v.gprs.rax, 0x1122_3344_5566_ab88);
    Gpr::new(Register::AX).unwrap().write(&mut v, 0x1_ffff);
    assert_eq!(v.gprs.rax, 0x1122_3344_5566_ffff);
    Gpr::new(Register::EAX).unwrap().write(&mut v, 0x9_8765_4321);
    assert_eq!(v.gprs.rax, 0x8765_4321);
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(code: [u8; 15], long: bool, wide: bool) {
        let m = memory(0, 0x10000);
        let mut v = FakeVcpu::long_mode().at_code(&m, &code);
        let attributes = &mut v.segments[SegmentName::Cs as usize].attributes;
        attributes.set_long(long);
        attributes.set_default_32(wide);
        let _ = decode(&v, &m);
        let _ = after(&v, &m, |_| true);
    }
}
