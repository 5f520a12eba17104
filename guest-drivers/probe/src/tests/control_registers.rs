//! Tests CR0 and CR4 (SDM vol. 3A 2.5 and vol. 2 "MOV to control registers", "SMSW", "CLTS"; APM vol. 2 3.1).

#![allow(unsafe_code, reason = "what is tested are single instructions")]

use bare::cpu::{self, cpuid};
use bare::instruction;
use bare::memory::{self, ARENA};

use crate::report::{Outcome, ensure, equal};

const GENERAL_PROTECTION: u8 = 13;
const TS: u64 = 1 << 3;
const WP: u64 = 1 << 16;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
const PG: u64 = 1 << 31;
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
