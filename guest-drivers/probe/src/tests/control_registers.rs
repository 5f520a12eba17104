//! Tests CR0, CR4, EFER and XCR0 (SDM vol. 3A 2.5, 2.2.1 and 2.6, vol. 1 13.3, and vol. 2 "MOV to control registers",
//! "SMSW", "CLTS", "XSETBV"; APM vol. 2 3.1).

#![allow(unsafe_code, reason = "what is tested are single instructions")]

use bare::cpu::{self, cpuid, cpuid_of, read_msr, write_msr};
use bare::instruction;
use bare::memory::{self, ARENA};

use crate::report::{Outcome, ensure, equal};

const GENERAL_PROTECTION: u8 = 13;
const TS: u64 = 1 << 3;
const WP: u64 = 1 << 16;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
const PG: u64 = 1 << 31;
const EFER: u32 = 0xc000_0080;
const MCE: u64 = 1 << 6;
const PCE: u64 = 1 << 8;

/// The bits of CR4 that CPUID offers (SDM vol. 3A 2.5), besides MCE and PCE, which every guest has here.
fn offered() -> u64 {
    let (one, seven) = (cpuid(1), cpuid(7));
    let features = [
        (one.edx >> 1, 0b11),                        // VME: VME, PVI
        (one.edx >> 4, 1 << 2),                      // TSC: TSD
        (one.edx >> 2, 1 << 3),                      // DE
        (one.edx >> 3, 1 << 4),                      // PSE
        (one.edx >> 6, 1 << 5),                      // PAE
        (one.edx >> 13, 1 << 7),                     // PGE
        (one.edx >> 24, 1 << 9),                     // FXSR: OSFXSR
        (one.edx >> 25, 1 << 10),                    // SSE: OSXMMEXCPT
        (seven.ecx >> 2, 1 << 11),                   // UMIP
        (seven.ecx >> 16, 1 << 12),                  // LA57
        (one.ecx >> 5, 1 << 13),                     // VMX
        (one.ecx >> 6, 1 << 14),                     // SMX
        (seven.ebx, 1 << 16),                        // FSGSBASE
        (one.ecx >> 17, 1 << 17),                    // PCID
        (one.ecx >> 26, 1 << 18),                    // XSAVE
        (seven.ebx >> 7, 1 << 20),                   // SMEP
        (seven.ebx >> 20, 1 << 21),                  // SMAP
        (seven.ecx >> 3, 1 << 22),                   // PKU
        (seven.ecx >> 7 | seven.edx >> 20, 1 << 23), // CET
        (seven.ecx >> 31, 1 << 24),                  // PKS
    ];
    features.iter().filter(|(flag, _)| flag & 1 != 0).fold(MCE | PCE, |all, (_, bits)| all | bits)
}

fn write_cr4(value: u64) -> Result<(), u8> {
    instruction!("mov cr4, rax", value, ARENA).map(|_| ())
}

fn write_cr0(value: u64) -> Result<(), u8> {
    instruction!("mov cr0, rax", value, ARENA).map(|_| ())
}

pub fn hidden_bits_of_cr4_are_refused() -> Outcome {
    let (before, offered) = (cpu::cr4(), offered());
    for bit in (0..64).filter(|bit| offered >> bit & 1 == 0) {
        let written = write_cr4(before | 1 << bit);
        let after = cpu::cr4();
        if after != before {
            cpu::set_cr4(before);
        }
        ensure!(written == Err(GENERAL_PROTECTION), "bit {bit}: {written:?}, CR4 is {after:#x}");
        equal!(after, before, "CR4 after bit {}", bit);
    }
    Ok(())
}

pub fn bits_of_cr4_that_cpuid_offers_hold() -> Outcome {
    // DE, MCE, PGE, PCE, OSXMMEXCPT, UMIP, OSXSAVE: they change nothing for this program.
    const HARMLESS: u64 = 1 << 3 | MCE | 1 << 7 | PCE | 1 << 10 | 1 << 11 | 1 << 18;
    let (before, offered) = (cpu::cr4(), offered());
    for bit in (0..64).filter(|bit| offered & HARMLESS & !before & 1 << bit != 0) {
        let written = write_cr4(before | 1 << bit);
        let set = cpu::cr4();
        let cleared = write_cr4(before);
        equal!((written, cleared, set, cpu::cr4()), (Ok(()), Ok(()), before | 1 << bit, before), "bit {}", bit);
    }
    Ok(())
}

/// CR0 as a MOV and three forms of SMSW read it.
fn seen() -> [u64; 4] {
    const SMSW: Result<u64, u8> = Err(0);
    let long = instruction!("smsw rax", 0, ARENA).or(SMSW).unwrap_or(0);
    let short = instruction!("smsw eax", u64::MAX, ARENA).or(SMSW).unwrap_or(0);
    memory::write64(ARENA, u64::MAX);
    let _ = instruction!("smsw word ptr [rdi]", 0, ARENA);
    [cpu::cr0(), long, short, memory::read64(ARENA)]
}

/// What [`seen`] gives if the guest sees `value`.
fn sees(value: u64) -> [u64; 4] {
    [value, value, value & 0xffff_ffff, value & 0xffff | !0xffff]
}

pub fn caches_off_are_shown() -> Outcome {
    let before = cpu::cr0() & !(CD | NW);
    let (tables_before, cr4_before) = (cpu::cr3(), cpu::cr4());
    for off in [CD, CD | NW] {
        equal!(write_cr0(before | off), Ok(()), "a write of {:x}", off);
        equal!(seen(), sees(before | off), "with {:x}", off);
        // Without CD, QEMU's translator ignores the upper half: it neither faults nor exits.
        equal!(write_cr0(before | off | 1 << 32), Err(GENERAL_PROTECTION), "a bit of the upper half");
        // The other bits are as they are without it.
        equal!(write_cr0(before | off | TS), Ok(()), "TS");
        equal!(seen(), sees(before | off | TS), "with TS");
        equal!(instruction!("clts", 0, ARENA), Ok(0), "CLTS");
        equal!(seen(), sees(before | off), "after CLTS");
        equal!(instruction!("lmsw ax", 0xb, ARENA), Ok(0xb), "LMSW");
        equal!(seen(), sees(before & !0xf | off | 0xb), "after LMSW");
        // Linux reads CR4 and writes CR3 and CR4 with CD set.
        let (tables, cr4) = (cpu::cr3(), cpu::cr4());
        equal!((tables, cr4), (tables_before, cr4_before), "CR3 and CR4 with {:x}", off);
        equal!(instruction!("mov cr3, rax", tables, ARENA), Ok(tables), "CR3");
        equal!(write_cr4(cr4 | PCE), Ok(()), "CR4");
        equal!((cpu::cr3(), cpu::cr4()), (tables, cr4 | PCE), "CR3 and CR4");
        equal!(write_cr4(cr4), Ok(()), "CR4 again");
        equal!(write_cr0(before), Ok(()), "caches on again");
        equal!(seen(), sees(before), "caches on again: CR0");
    }
    Ok(())
}

pub fn what_cr0_refuses() -> Outcome {
    let before = cpu::cr0();
    for value in [before | NW, before & !PG, before & !1, before & !PG | CD] {
        let written = write_cr0(value);
        equal!((written, cpu::cr0()), (Err(GENERAL_PROTECTION), before), "a write of {:x}", value);
    }
    // WP is the guest's own.
    equal!(write_cr0(before ^ WP), Ok(()), "a write of WP");
    let changed = cpu::cr0();
    equal!((write_cr0(before), changed), (Ok(()), before ^ WP), "WP");
    Ok(())
}

/// Bits 6 to 15, 17 and 19 to 28 of CR0: reserved, and setting one has no effect.
const CR0_IGNORED: u64 = 0x1ffa_ffc0;

pub fn every_bit_of_cr0_does_as_the_manual_has_it() -> Outcome {
    // MP, EM, TS, NE, WP, AM: the guest's own. ET is always 1. The others are what the next tests are about, and PE and PG.
    const OWN: u64 = 0x5_002e;
    const ET: u64 = 1 << 4;
    let before = cpu::cr0();
    for bit in (0..32).filter(|bit| (OWN | ET) >> bit & 1 != 0) {
        let changed = before ^ 1 << bit;
        let (written, seen) = (write_cr0(changed), cpu::cr0());
        equal!((written, write_cr0(before)), (Ok(()), Ok(())), "a change of bit {}", bit);
        equal!(seen, if 1 << bit == ET { before } else { changed }, "CR0 after bit {}", bit);
    }
    // With CD every write exits, on SVM too.
    for off in [0, CD] {
        let before = before | off;
        equal!(write_cr0(before), Ok(()), "CD of {:x}", off);
        for bit in (0..64).filter(|bit| (CR0_IGNORED | !0xffff_ffff) >> bit & 1 != 0) {
            let (written, seen) = (write_cr0(before | 1 << bit), cpu::cr0());
            let again = write_cr0(before);
            if bit < 32 {
                // QEMU's translator keeps the bit. It has no effect there either.
                equal!((written, seen & !(1 << bit)), (Ok(()), before), "bit {}", bit);
            } else {
                // Without CD, QEMU's translator ignores the upper half: it neither faults nor exits.
                ensure!(written == Err(GENERAL_PROTECTION) || off == 0, "bit {bit} of CR0 with {off:x}: {written:?}");
                equal!(seen, before, "CR0 after bit {}", bit);
            }
            equal!((again, cpu::cr0()), (Ok(()), before), "CR0 as it was, after bit {}", bit);
        }
    }
    equal!(write_cr0(before), Ok(()), "CR0 as it was");
    Ok(())
}

pub fn every_bit_of_efer_does_as_the_manual_has_it() -> Outcome {
    const LME: u32 = 8;
    const LMA: u32 = 10;
    let extended = cpuid(0x8000_0001);
    // Bits that CPUID offers: SCE, NXE, FFXSR. A guest is offered neither translation cache extension, MCOMMIT, interruptible
    // WBINVD, upper address ignore nor automatic IBRS.
    let offered = [(extended.edx >> 11, 0), (extended.edx >> 20, 11), (extended.edx >> 25, 14)];
    let before = read_msr(EFER).unwrap_or(0);
    for bit in 0..64 {
        let changed = before ^ 1 << bit;
        let written = write_msr(EFER, changed);
        let seen = read_msr(EFER);
        let again = write_msr(EFER, before);
        if bit == LMA {
            // Intel ignores what is written, AMD refuses it. It stays in any case.
            equal!(seen, Ok(before), "EFER after LMA");
        } else if offered.iter().any(|&(flag, its)| its == bit && flag & 1 != 0) {
            equal!((written, seen), (Ok(()), Ok(changed)), "bit {} of EFER", bit);
        } else {
            // LME among them: paging is on.
            equal!((written, seen), (Err(GENERAL_PROTECTION), Ok(before)), "bit {} of EFER", bit);
        }
        equal!((again, read_msr(EFER)), (Ok(()), Ok(before)), "EFER as it was, after bit {}", bit);
        ensure!(bit != LME || before >> LME & 1 != 0, "a guest in long mode without LME");
    }
    Ok(())
}

fn write_xcr0(value: u64) -> Result<(), u8> {
    instruction!("mov rdx, rax; shr rdx, 32; xsetbv", value, ARENA).map(|_| ())
}

/// XCR0's lower half. No component of the upper half exists.
fn xcr0() -> Result<u64, u8> {
    instruction!("xgetbv", 0, ARENA).map(|low| low & 0xffff_ffff)
}

pub fn every_bit_of_xcr0_does_as_the_manual_has_it() -> Outcome {
    const OSXSAVE: u64 = 1 << 18;
    const X87: u64 = 1 << 0;
    const SSE: u64 = 1 << 1;
    const AVX: u64 = 1 << 2;
    // Bits that may be set with x87 alone: SSE and PKRU.
    const ALONE: u64 = SSE | 1 << 9;
    if cpuid(1).ecx & 1 << 26 == 0 {
        return Ok(());
    }
    let components = cpuid_of(0xd, 0);
    let offered = u64::from(components.edx) << 32 | u64::from(components.eax);
    let cr4 = cpu::cr4();
    cpu::set_cr4(cr4 | OSXSAVE);
    let before = xcr0();
    let refused = |value: u64| (value, write_xcr0(value), xcr0());
    // Each bit beside x87; x87 clear; AVX without SSE; a part of AVX-512; and another register than XCR0.
    let bits = (1..64).map(|bit| X87 | 1 << bit).filter(|value| value & !(X87 | offered & ALONE) != 0);
    let bad = bits
        .chain([0, SSE, offered & !X87, X87 | AVX, X87 | SSE | AVX | 1 << 5, X87 | SSE | 0xe0])
        .map(refused)
        .find(|&(_, written, seen)| written != Err(GENERAL_PROTECTION) || seen != before);
    let other = instruction!("mov ecx, 1; xsetbv", X87, ARENA);
    // What is offered holds, one by one and together.
    let good = (1..64).map(|bit| X87 | 1 << bit).filter(|value| value & !(X87 | offered & ALONE) == 0);
    let lost = good
        .chain([offered])
        .map(|value| (value, write_xcr0(value), xcr0()))
        .find(|&(value, written, seen)| written != Ok(()) || seen != Ok(value));
    let again = before.and_then(write_xcr0);
    cpu::set_cr4(cr4);
    equal!(bad, None, "a value of XCR0 that has to be refused");
    equal!(other, Err(GENERAL_PROTECTION), "XSETBV of register 1");
    equal!(lost, None, "a value of XCR0 that CPUID offers");
    equal!(again, Ok(()), "XCR0 as it was");
    Ok(())
}
