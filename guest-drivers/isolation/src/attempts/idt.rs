//! Moves the interrupt descriptor table, writes to it and uses all its vectors while interrupts arrive. This could
//! confuse a host that keeps a shadow of the table. Each interrupt must arrive once. Each fault must be the one of
//! hardware.
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
/// Address of a table in an aligned page.
const TABLE: u64 = ARENA + 0x10_0000;
/// Address of a table that crosses a page boundary.
const ACROSS: u64 = TABLE + 0x2800;
const LIMIT: u16 = 0xfff;
/// The present bit, in the lower half of a gate.
const PRESENT: u64 = 1 << 47;
/// A vector that only this file uses.
const VECTOR: u8 = 0x61;
const WRITES: u64 = 2000;

/// Makes all attempts of this file.
pub fn all(machine: &Machine, report: &mut Report) {
    interrupts::enable_apic(report);
    for table in [TABLE, ACROSS] {
        for vector in 0..=255 {
            let (low, high) = trap::gate(vector);
            memory::write64(table + u64::from(vector) * 16, low);
            memory::write64(table + u64::from(vector) * 16 + 8, high);
        }
    }
    // With the word `shadowed` the host keeps a shadow, and the attempts wait for it.
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
    // This comes last, because after it the host has no vectors left and keeps no shadow.
    every_vector(report);
    trap::init();
}

/// Whether a gate reads as absent, although it was written as present. Such a gate is one of the host's in a shadow.
fn is_absent(vector: u8) -> bool {
    memory::read64(TABLE + u64::from(vector) * 16) & PRESENT == 0
}

fn load(report: &Report, base: u64, limit: u16) {
    if cpu::load_idt(base, limit).is_err() {
        report.broken(format_args!("LIDT of {base:#x} faults"));
    }
}

/// Sends an interrupt to this CPU, and checks that it arrives once.
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

/// Uses every vector. As soon as the guest uses a vector of the host, it belongs to the guest.
fn every_vector(report: &mut Report) {
    for vector in 0x20..=0xfe {
        arrives(report, vector, "for the first time");
    }
    for vector in 0x20..=0xfe {
        arrives(report, vector, "for the second time");
    }
}

/// Stores to the table between interrupts, with changing values.
fn writes(report: &mut Report) {
    let spare = TABLE + 0x62 * 16 + 8;
    for turn in 0..WRITES {
        // The last four bytes of the upper half are reserved. Their bits 8 to 12 are a type, which must be zero on
        // Bochs.
        let turn = turn & 0xff;
        memory::write64(spare, memory::read64(spare) & 0xffff_ffff | turn << 32);
        arrives(report, VECTOR, "after a store to the table");
        if memory::read64(spare) >> 32 != turn {
            report.attempt(false, format_args!("store {turn} to the table is lost"));
        }
    }
}

/// Loads addresses without a table with LIDT, and the real table again before an interrupt is delivered.
fn moves(report: &mut Report) {
    // The manual says #GP. QEMU's translator loads it.
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

/// Takes an interrupt on a gate that the guest itself has marked absent.
fn own_absent_gate(report: &mut Report) {
    let gate = TABLE + u64::from(VECTOR) * 16;
    let low = memory::read64(gate);
    memory::write64(gate, low & !PRESENT);
    let _ = cpu::write_msr(SELF_IPI, VECTOR.into());
    let result = cpu::open_interrupts_expecting_a_fault();
    report.attempt(result == Err(NOT_PRESENT), format_args!("an interrupt on an absent gate: {result:?}"));
    // The interrupt is in service nevertheless.
    cpu::end_of_interrupt();
    memory::write64(gate, low);
    arrives(report, VECTOR, "after its gate was absent");
}

/// Executes INT n with vectors that a host likes to use. These interrupts are the guest's own.
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
    // If the host used such a vector, one of its interrupts may have waited until the guest opened interrupts. The
    // guest takes it now. There is at most one for each vector.
    let before = trap::all_arrived();
    (0..1000).for_each(|_| cpu::open_interrupts(100));
    let strays = trap::all_arrived().wrapping_sub(before);
    report.attempt(strays <= 12, format_args!("{strays} interrupts that nobody asked for"));
}
