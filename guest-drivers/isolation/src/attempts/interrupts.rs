//! Sends interrupts to other CPUs in every way: through the APIC's page, the ICR and the IOAPIC. What hardware accepts
//! must not fault. Nothing must arrive here. The other guests check that nothing arrives there.
//!
//! Follows SDM vol. 3A ch. 11 (10 in editions before 2022) and the 82093AA data sheet.

use crate::report::Report;
use bare::{console, cpu, memory, trap};

const APIC_PAGE: u64 = 0xfee0_0000;
const IOAPIC: u64 = 0xfec0_0000;
const ID: u32 = 0x802;
const SVR: u32 = 0x80f;
const ICR: u32 = 0x830;
const SELF_IPI: u32 = 0x83f;
/// A vector that only this file uses.
const VECTOR: u8 = 0x41;
const GENERAL_PROTECTION: u8 = 13;
/// Turns of PAUSE that are enough for an interrupt to arrive.
const SPINS: u32 = 200;

/// Enables the APIC and returns its ID.
pub fn enable_apic(report: &Report) -> u32 {
    match (cpu::write_msr(SVR, 0x1ff), cpu::read_msr(ID)) {
        (Ok(()), Ok(id)) => id as u32,
        _ => {
            report.broken(format_args!("the local APIC is not in x2APIC mode"));
            0
        }
    }
}

/// Accesses the APIC's page. In x2APIC mode the registers are MSRs. The page of the older mode is then an ordinary bus
/// address without a target.
pub fn apic_page(report: &mut Report) {
    enable_apic(report);
    let before = trap::all_arrived();
    for offset in (0..0x1000).step_by(16) {
        let address = APIC_PAGE + offset;
        let value = memory::read32(address);
        report.attempt(value == u32::MAX, format_args!("load of {address:#x} gave {value:#x}"));
    }
    // ICR of the older mode: NMI, INIT, start-up and a fixed interrupt to everybody else; then EOI, SVR, timer.
    let stores = [(0x310, 0xff00_0000), (0x300, 0xc4400), (0x300, 0xc4500), (0x300, 0xc4610), (0x300, 0xc4041)];
    for (offset, value) in stores.into_iter().chain([(0xb0, 0), (0xf0, 0x1ff), (0x320, 0x41), (0x380, 1)]) {
        memory::write32(APIC_PAGE + offset, value);
        cpu::open_interrupts(SPINS);
        let after = memory::read32(APIC_PAGE + offset);
        let nothing = after == u32::MAX && trap::all_arrived() == before;
        report.attempt(nothing, format_args!("store of {value:#x} to the APIC page at {offset:#x}"));
    }
    // A store by a CPU is never an interrupt message, at any address.
    for destination in 0..16 {
        memory::write32(APIC_PAGE + (destination << 12), u32::from(VECTOR));
        cpu::open_interrupts(SPINS);
        report.attempt(trap::all_arrived() == before, format_args!("store to the page of APIC {destination:#x}"));
    }
}

/// Writes commands for other CPUs to the ICR. Hardware accepts them. Nothing happens without such a CPU.
pub fn icr(report: &mut Report) {
    let own = enable_apic(report);
    if cpu::write_msr(SELF_IPI, VECTOR.into()).is_err() {
        report.broken(format_args!("SELF IPI faults"));
    }
    cpu::open_interrupts(SPINS);
    if trap::arrived(VECTOR) == 0 {
        report.broken(format_args!("an interrupt to this CPU itself did not arrive"));
    }
    let before = trap::all_arrived();
    // Fixed, lowest priority, SMI, NMI, INIT, start-up at 0x10000.
    let commands = [0x0041, 0x0141, 0x0200, 0x0400, 0xc500, 0x0610];
    let others = (0..=0xff).chain([0x100, 0x1000, 0xffff, 0x1_0000, 0x7fff_ffff, 0xffff_fffe]);
    for destination in others.filter(|id| *id != own) {
        for command in commands {
            send(report, before, u64::from(destination) << 32 | command);
        }
    }
    for command in commands {
        // All but self; and logical destinations in clusters other than this CPU's.
        send(report, before, command | 3 << 18);
        for cluster in 1..16_u64 {
            send(report, before, (cluster << 16 | 0xffff) << 32 | command | 1 << 11);
        }
    }
    for bit in [13, 16, 17].into_iter().chain(20..32) {
        let result = cpu::write_msr(ICR, 1 << bit | u64::from(VECTOR));
        report.attempt(result == Err(GENERAL_PROTECTION), format_args!("reserved bit {bit} of the ICR: {result:?}"));
    }
}

fn send(report: &mut Report, before: u32, command: u64) {
    let result = cpu::write_msr(ICR, command);
    cpu::open_interrupts(8);
    let arrived = trap::all_arrived().wrapping_sub(before);
    report.attempt(result.is_ok() && arrived == 0, format_args!("ICR {command:#x}: {result:?}, {arrived} arrived"));
}

fn select(register: u8) {
    memory::write32(IOAPIC, register.into());
}

fn set_entry(pin: u8, entry: u64) {
    select(0x11 + pin * 2);
    memory::write32(IOAPIC + 0x10, (entry >> 32) as u32);
    select(0x10 + pin * 2);
    memory::write32(IOAPIC + 0x10, entry as u32);
}

/// Raises the console's interrupt line: disables the interrupt "transmitter empty", then enables it.
fn raise_console_line() {
    const IER: u16 = console::COM1 + 1;
    // OUT2 lets the interrupt out of the UART, as on a PC.
    cpu::out8(console::COM1 + 4, 8);
    cpu::out8(IER, 0);
    cpu::out8(IER, 2);
    cpu::open_interrupts(SPINS);
    cpu::in8(console::COM1 + 2);
    cpu::out8(IER, 0);
}

/// Accesses registers that the IOAPIC does not have. Then writes entries whose message goes to another CPU, or is of a
/// kind that only firmware sends.
pub fn ioapic(report: &mut Report) {
    let own = u64::from(enable_apic(report));
    for offset in (0x20..0x1000_u64).step_by(16).filter(|offset| *offset != 0x40) {
        memory::write32(IOAPIC + offset, 0x1234_5678);
        let value = memory::read32(IOAPIC + offset);
        report.attempt(matches!(value, 0 | u32::MAX), format_args!("IOAPIC at {offset:#x} holds {value:#x}"));
    }
    for register in 0x40..=0xff {
        select(register);
        memory::write32(IOAPIC + 0x10, 0x1234_5678);
        let value = memory::read32(IOAPIC + 0x10);
        report.attempt(matches!(value, 0 | u32::MAX), format_args!("IOAPIC register {register:#x} holds {value:#x}"));
    }
    const CONSOLE_PIN: u8 = 4;
    set_entry(CONSOLE_PIN, own << 56 | u64::from(VECTOR));
    let before = trap::arrived(VECTOR);
    raise_console_line();
    if trap::arrived(VECTOR) == before {
        report.broken(format_args!("the console's interrupt did not arrive"));
    }
    let before = trap::all_arrived();
    // SMI, INIT and ExtINT to this CPU, then every mode to others.
    let firmware = [0x200, 0x500, 0x700].map(|mode| own << 56 | mode);
    let others = (0..=15)
        .filter(|id| *id != own)
        .flat_map(|id| [0x41, 0x141, 0x200, 0x400, 0x500, 0x700].map(|mode| id << 56 | mode));
    for entry in firmware.into_iter().chain(others) {
        set_entry(CONSOLE_PIN, entry);
        raise_console_line();
        let arrived = trap::all_arrived().wrapping_sub(before);
        report.attempt(arrived == 0, format_args!("IOAPIC entry {entry:#x}: {arrived} arrived"));
    }
    set_entry(CONSOLE_PIN, 1 << 16);
}
