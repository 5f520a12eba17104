//! An interrupt descriptor table that is moved, written to and used up while interrupts arrive, in every way that could
//! confuse a host that keeps a shadow of it. Each interrupt arrives once, each fault is the one that hardware raises.
//!
//! Follows SDM vol. 3A 6.10 to 6.15 and 11.12.11 (SELF IPI).

#![allow(unsafe_code, reason = "INT n by the macro of cpu.rs")]

use crate::attempts::interrupts;
use crate::report::Report;
use crate::virtio::wait;
use bare::boot::Machine;
use bare::memory::{self, ARENA};
use bare::{cpu, trap};

const SELF_IPI: u32 = 0x83f;
const NOT_PRESENT: u8 = 11;
const GENERAL_PROTECTION: u8 = 13;
/// An aligned page, with room for a table across the next boundary.
const TABLE: u64 = ARENA + 0x10_0000;
const ACROSS: u64 = TABLE + 0x2800;
const LIMIT: u16 = 0xfff;
/// In the middle of a gate's lower half.
const PRESENT: u64 = 1 << 47;
/// A vector of this file's own.
const VECTOR: u8 = 0x61;
const WRITES: u64 = 2000;

/// Everything.
pub fn all(machine: &Machine, report: &mut Report) {
    interrupts::enable_apic(report);
    for table in [TABLE, ACROSS] {
        for vector in 0..=255 {
            let (low, high) = trap::gate(vector);
            memory::write64(table + u64::from(vector) * 16, low);
            memory::write64(table + u64::from(vector) * 16 + 8, high);
        }
    }
    // With the word `shadowed` the host is said to keep a shadow, and the attempts are made on one.
    let shadowed = machine.words().any(|word| word == "shadowed");
    let settle = |report: &Report| {
        if shadowed && !wait(|| (0x20..=255).any(is_absent)) {
            report.broken(format_args!("the table is not shadowed"));
        }
    };
    load(report, TABLE, LIMIT);
    settle(report);
    writes(report);
    settle(report);
    moves(report);
    load(report, ACROSS, LIMIT);
    for _ in 0..50 {
        arrives(report, VECTOR, "with a table across two pages");
    }
    load(report, TABLE, LIMIT);
    settle(report);
    own_absent_gate(report);
    settle(report);
    int_n(report);
    settle(report);
    // The last: after it the host has no vectors left, and keeps no shadow.
    every_vector(report);
    trap::init();
}

/// Whether a gate that was written as present is seen as absent: the host's, in a shadow.
fn is_absent(vector: u8) -> bool {
    memory::read64(TABLE + u64::from(vector) * 16) & PRESENT == 0
}

fn load(report: &Report, base: u64, limit: u16) {
    if cpu::load_idt(base, limit).is_err() {
        report.broken(format_args!("LIDT of {base:#x} faults"));
    }
}

/// An interrupt to itself arrives, once.
fn arrives(report: &mut Report, vector: u8, when: &str) {
    let (before, all) = (trap::arrived(vector), trap::all_arrived());
    let sent = cpu::write_msr(SELF_IPI, vector.into());
    let came = wait(|| {
        cpu::open_interrupts(4);
        trap::arrived(vector) != before
    });
    let (once, others) = (trap::arrived(vector).wrapping_sub(before), trap::all_arrived().wrapping_sub(all));
    let good = sent.is_ok() && came && once == 1 && others == 1;
    report.attempt(good, format_args!("vector {vector:#x} {when}: {once} arrived, {others} with any vector"));
}

/// The host's vectors, whichever they are, are the guest's as soon as it uses them.
fn every_vector(report: &mut Report) {
    for vector in 0x20..=0xfe {
        arrives(report, vector, "for the first time");
    }
    for vector in 0x20..=0xfe {
        arrives(report, vector, "for the second time");
    }
}

/// Stores to the table between interrupts, the same value and another.
fn writes(report: &mut Report) {
    let spare = TABLE + 0x62 * 16 + 8;
    for turn in 0..WRITES {
        // The upper half's last four bytes are reserved. Bits 8 to 12 of them are a type that Bochs wants to be zero.
        let turn = turn & 0xff;
        memory::write64(spare, memory::read64(spare) & 0xffff_ffff | turn << 32);
        arrives(report, VECTOR, "after a store to the table");
        if memory::read64(spare) >> 32 != turn {
            report.attempt(false, format_args!("store {turn} to the table is lost"));
        }
    }
}

/// LIDT of what is no table, and back before anything is delivered through it.
fn moves(report: &mut Report) {
    // #GP by the manual; QEMU's translator loads it.
    let result = cpu::load_idt(1 << 63, LIMIT);
    let as_expected = matches!(result, Ok(()) | Err(GENERAL_PROTECTION));
    report.attempt(as_expected, format_args!("LIDT that is not canonical: {result:?}"));
    load(report, TABLE, LIMIT);
    for (base, limit) in [(0, 0), (0x10, LIMIT), (TABLE, 3), (0xfee0_0000, LIMIT), (0x7fff_ffff_f000, 0xffff)] {
        for _ in 0..20 {
            load(report, base, limit);
            load(report, TABLE, LIMIT);
            arrives(report, VECTOR, "after LIDT elsewhere and back");
        }
    }
}

/// An interrupt on a gate that the guest itself marks absent.
fn own_absent_gate(report: &mut Report) {
    let gate = TABLE + u64::from(VECTOR) * 16;
    let low = memory::read64(gate);
    memory::write64(gate, low & !PRESENT);
    let _ = cpu::write_msr(SELF_IPI, VECTOR.into());
    let result = cpu::open_interrupts_expecting_a_fault();
    report.attempt(result == Err(NOT_PRESENT), format_args!("an interrupt on an absent gate: {result:?}"));
    // It is in service all the same.
    cpu::end_of_interrupt();
    memory::write64(gate, low);
    arrives(report, VECTOR, "after its gate was absent");
}

/// INT n, which is an interrupt of the guest's own making, on vectors that a host likes for itself.
fn int_n(report: &mut Report) {
    macro_rules! int {
        ($($vector:literal)*) => {
            [$(($vector, bare::instruction!(concat!("int ", $vector), 0, 0).map(drop))),*]
        };
    }
    let before: [u32; 256] = core::array::from_fn(|v| trap::arrived(v as u8));
    for (vector, result) in int!(0x80 0xec 0xf0 0xf1 0xf2 0xf3 0xf5 0xfd 0xfe 0xff 0x20 0x30) {
        let arrived = trap::arrived(vector).wrapping_sub(before[usize::from(vector)]);
        report.attempt(result.is_ok() && arrived == 1, format_args!("INT {vector:#x}: {result:?}, {arrived} arrived"));
    }
    // A host that had such a vector for itself may have had one on its way, which waited for interrupts to be opened: it is
    // the guest's now. One for each vector at most.
    let before = trap::all_arrived();
    (0..1000).for_each(|_| cpu::open_interrupts(100));
    let strays = trap::all_arrived().wrapping_sub(before);
    report.attempt(strays <= 12, format_args!("{strays} interrupts that nobody asked for"));
}
