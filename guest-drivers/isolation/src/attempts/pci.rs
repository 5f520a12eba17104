//! Accesses configuration space, through the ports and ECAM, on every bus. Only the guest's own functions are there.
//! The rest reads as all ones, and writes have no effect (PCI 3.0, 6.1). A BAR gives no access to another guest's
//! memory.

use crate::report::Report;
use bare::memory;
use bare::pci::{Function, bus_0};

const ECAM: u64 = 0xe000_0000;
const ECAM_WINDOW: u64 = 0x1000_0000;
const VIRTIO_NET: u32 = 0x1041_1af4;
/// An address in the guest's RAM, before its image.
const OWN_MEMORY: u64 = 0x40_0000;

/// Makes all attempts of this file.
pub fn all(report: &mut Report) {
    for function in bus_0() {
        let id = function.read(0);
        if !own(function, id) {
            absent(report, function);
        }
        let by_memory = memory::read32(ECAM + function.ecam());
        report.attempt(by_memory == id, format_args!("ECAM at {:#x} gave {by_memory:#x}", function.ecam()));
    }
    for bus in 1..=255 {
        for device in 0..32 {
            let id = Function(bus, device, 0).read(0);
            report.attempt(id == u32::MAX, format_args!("bus {bus} device {device} has {id:#x}"));
        }
    }
    for offset in (0x10_0000..ECAM_WINDOW).step_by(0x10_0000) {
        let value = memory::read32(ECAM + offset);
        report.attempt(value == u32::MAX, format_args!("behind ECAM, {offset:#x} gave {value:#x}"));
    }
    for function in bus_0().filter(|function| function.read(0) == VIRTIO_NET) {
        bar_over_memory(report, function);
    }
}

/// The host bridge and virtio-net devices are the guest's.
fn own(function: Function, id: u32) -> bool {
    const HOST_BRIDGE: u32 = 0x0600;
    id == VIRTIO_NET || function == Function(0, 0, 0) && function.read(8) >> 16 == HOST_BRIDGE
}

fn absent(report: &mut Report, function: Function) {
    let Function(_, device, number) = function;
    let id = function.read(0);
    report.attempt(id == u32::MAX, format_args!("device {device}.{number} has {id:#x}"));
    if id != u32::MAX {
        // The function exists and may be the host's. Do not change it.
        return;
    }
    for register in [0x04, 0x10, 0x14, 0x3c] {
        function.write(register, 0x0000_0007);
        let value = function.read(register);
        report.attempt(value == u32::MAX, format_args!("device {device}.{number} kept {value:#x} at {register:#x}"));
    }
}

/// Moves the device's registers over memory, the APIC's page and addresses without a target. RAM must stay RAM.
fn bar_over_memory(report: &mut Report, function: Function) {
    const MARK: u64 = 0x0b5e_55ed_0b5e_55ed;
    let bars = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24];
    let saved = bars.map(|register| function.read(register));
    memory::write64(OWN_MEMORY, MARK);
    for (register, before) in bars.into_iter().zip(saved) {
        if before == 0 || before & 1 == 1 {
            continue;
        }
        for base in [OWN_MEMORY as u32, 0, 0xfee0_0000, 0xfec0_0000, ECAM as u32, 0xffff_f000] {
            function.write(register, base);
            let (word, again) = (memory::read64(OWN_MEMORY), {
                memory::write64(OWN_MEMORY, !MARK);
                memory::read64(OWN_MEMORY)
            });
            memory::write64(OWN_MEMORY, MARK);
            report.attempt((word, again) == (MARK, !MARK), format_args!("BAR at {base:#x}: memory reads {word:#x}"));
            function.write(register, before);
        }
    }
    memory::write64(OWN_MEMORY, 0);
    if bars.map(|register| function.read(register)) != saved {
        report.broken(format_args!("a BAR did not take its former value"));
    }
}
