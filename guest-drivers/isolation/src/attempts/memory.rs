//! Guest-physical memory that is not the guest's. What lies above its memory answers loads with all ones and forgets
//! stores, as a bus without a target does; what lies in it is its own and holds nothing of the host's.

use crate::report::Report;
use bare::boot::Machine;
use bare::memory::{self, ARENA};

/// Bus addresses from here to 4 GiB have devices in them and are tried elsewhere.
const PCI_HOLE: u64 = 0xc000_0000;
const PATTERN: u64 = 0x5ec0_4e5c_a11e_d000;

/// Every width at one address: load, store, load again.
fn absent(report: &mut Report, address: u64) {
    let loaded = memory::read64(address);
    report.attempt(loaded == u64::MAX, format_args!("load of {address:#x} gave {loaded:#x}"));
    memory::write64(address, PATTERN);
    memory::write8(address + 3, 0x5a);
    let after = memory::read64(address);
    report.attempt(after == u64::MAX, format_args!("store to {address:#x} stayed: {after:#x}"));
    let narrow = (memory::read8(address + 1), memory::read16(address + 2), memory::read32(address + 4));
    report
        .attempt(narrow == (0xff, 0xffff, 0xffff_ffff), format_args!("narrow loads of {address:#x} gave {narrow:x?}"));
}

/// Above the end of memory: from there to the PCI hole, above 4 GiB, and up to the last address the CPU can form.
pub fn above_top(machine: &Machine, report: &mut Report) {
    let low = machine.memory_end.next_multiple_of(0x1000);
    absent(report, low);
    let step = ((PCI_HOLE.saturating_sub(low)) / 256).max(0x1000) & !0xfff;
    for address in (low..PCI_HOLE).step_by(step as usize) {
        absent(report, address);
    }
    absent(report, machine.high_end);
    for bit in 32..memory::address_bits() {
        let address = 1_u64 << bit;
        if address >= machine.high_end {
            absent(report, address);
            absent(report, address + (address >> 1) + 0x20_0000);
        }
    }
    absent(report, (1 << memory::address_bits()) - 0x1000);
}

/// F000:FFF0, where a processor begins after a reset.
const RESET_VECTOR: u64 = 0xf_fff0;

/// Below 1 MiB, where a PC has its BIOS and VGA memory: what the memory map does not call RAM is absent, or plain zeroed
/// memory of the guest's own, or holds the tables and the reset vector that were made for this guest; nowhere is there a trace of the host's
/// firmware.
pub fn below_1m(machine: &Machine, report: &mut Report) {
    let tables = machine.rsdp & !0xfff..(machine.rsdp & !0xfff) + TABLES_LENGTH;
    for page in (0..0x10_0000_u64).step_by(0x1000) {
        if machine.regions().iter().any(|region| region.kind == 1 && region.contains(page)) {
            continue;
        }
        let words = || (page..page + 0x1000).step_by(8).map(memory::read64);
        let blank = words().all(|word| word == u64::MAX) || words().all(|word| word == 0);
        if !blank && page == RESET_VECTOR & !0xfff {
            // The reset vector: at most its sixteen bytes, in a page that holds nothing else.
            let rest = (page..RESET_VECTOR).step_by(8).all(|at| memory::read64(at) == 0);
            report.attempt(rest, format_args!("page {page:#x} holds more than a reset vector"));
            continue;
        }
        if !blank && tables.contains(&page) {
            let found = FIRMWARE.iter().find(|text| contains(page, text.as_bytes()));
            report.attempt(found.is_none(), format_args!("page {page:#x} holds {found:?}"));
            continue;
        }
        report.attempt(blank, format_args!("page {page:#x} holds something"));
        let before = memory::read64(page + 8);
        memory::write64(page + 8, PATTERN);
        let after = memory::read64(page + 8);
        let own = before == 0 && after == PATTERN || before == u64::MAX && after == u64::MAX;
        report.attempt(own, format_args!("store to page {page:#x}: {before:#x} became {after:#x}"));
        if after == PATTERN {
            memory::write64(page + 8, before);
        }
    }
}

/// Room from the RSDP on in which this guest's ACPI tables stand.
const TABLES_LENGTH: u64 = 0x4000;

/// What the firmware of a host leaves below 1 MiB: makers' names, and the anchors of SMBIOS, PCI routing, MP and BIOS32.
const FIRMWARE: [&str; 11] =
    ["SeaBIOS", "BOCHS", "Bochs", "QEMU", "iPXE", "BIOS", "_SM_", "_DMI_", "$PIR", "_MP_", "_32_"];

fn contains(page: u64, text: &[u8]) -> bool {
    let length = text.len() as u64;
    (page..=page + 0x1000 - length).any(|at| (at..).zip(text).all(|(at, byte)| memory::read8(at) == *byte))
}

/// From 1 MiB to the image of this guest: where the hypervisor's own image lies in the host's memory. In the guest's it
/// is RAM of its own: zeroed, and what is written stays.
pub fn host_image(report: &mut Report) {
    for page in (0x10_0000..0xff_f000_u64).step_by(0x1000) {
        let zero = (page..page + 0x1000).step_by(8).all(|at| memory::read64(at) == 0);
        report.attempt(zero, format_args!("page {page:#x} is not zeroed, first word {:#x}", memory::read64(page)));
        memory::write64(page, PATTERN ^ page);
    }
    for page in (0x10_0000..0xff_f000_u64).step_by(0x1000) {
        let word = memory::read64(page);
        report.attempt(word == PATTERN ^ page, format_args!("page {page:#x} changed to {word:#x}"));
        memory::write64(page, 0);
    }
    if memory::read64(ARENA) == PATTERN {
        report.broken(format_args!("memory repeats itself"));
    }
}
