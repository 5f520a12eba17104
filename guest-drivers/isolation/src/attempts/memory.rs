//! Accesses guest-physical addresses that are not the guest's memory. Above the guest's memory, loads give all ones and
//! stores have no effect, as on a bus without a target. Memory within it is the guest's own and contains no data of the
//! host.

use crate::report::Report;
use bare::boot::Machine;
use bare::memory::{self, ARENA};

/// From here to 4 GiB are devices. Other files try them.
const PCI_HOLE: u64 = 0xc000_0000;
const PATTERN: u64 = 0x5ec0_4e5c_a11e_d000;

/// Loads, stores and loads again at one address, in every width.
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

/// Tries addresses above the end of memory: up to the PCI hole, above 4 GiB, and up to the CPU's last address.
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

/// F000:FFF0, where a processor starts after a reset.
const RESET_VECTOR: u64 = 0xf_fff0;

/// Tries addresses below 1 MiB, where a PC has its BIOS and VGA memory. A page that is not RAM in the memory map is one
/// of these: absent, zeroed memory of the guest's own, this guest's ACPI tables, or this guest's reset vector. No page
/// contains a trace of the host's firmware.
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

/// Bytes from the RSDP's page on that may contain this guest's ACPI tables.
const TABLES_LENGTH: u64 = 0x4000;

/// Texts that a host's firmware leaves below 1 MiB: vendors' names, and the anchors of SMBIOS, PCI routing, MP and
/// BIOS32.
const FIRMWARE: [&str; 11] =
    ["SeaBIOS", "BOCHS", "Bochs", "QEMU", "iPXE", "BIOS", "_SM_", "_DMI_", "$PIR", "_MP_", "_32_"];

fn contains(page: u64, text: &[u8]) -> bool {
    let length = text.len() as u64;
    (page..=page + 0x1000 - length).any(|at| (at..).zip(text).all(|(at, byte)| memory::read8(at) == *byte))
}

/// Tries addresses from 1 MiB to this guest's image. In the host's memory, the hypervisor's own image is there. In the
/// guest's memory it is the guest's own RAM: it is zeroed, and keeps what is written.
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
