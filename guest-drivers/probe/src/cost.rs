//! Exits of one kind, one after another for ever, so that somebody outside can count what each costs the hypervisor.

use bare::cpu;
use bare::memory;

use crate::report::say;

/// IA32_APIC_BASE.
const APIC_BASE: u32 = 0x1b;
/// The EOI register of an x2APIC.
const EOI: u32 = 0x80b;
/// The scratch register of COM1.
const SCRATCH: u16 = 0x3ff;
/// PCI's CONFIG_DATA.
const CONFIG_DATA: u16 = 0xcfc;
/// The window register of the IOAPIC.
const IOAPIC_WINDOW: u64 = 0xfec0_0010;

/// The instructions that exit. Their names in the benchmark have the same order.
const KINDS: [fn(); 6] = [
    || _ = cpu::cpuid(0),
    || _ = cpu::rdmsr(APIC_BASE),
    || cpu::wrmsr(EOI, 0),
    || _ = cpu::in8(SCRATCH),
    || _ = cpu::in32(CONFIG_DATA),
    || _ = memory::read32(IOAPIC_WINDOW),
];

/// Makes exits of this kind for ever, after a report.
///
/// # Errors
/// There is no such kind.
pub fn exits(kind: u32) -> Result<(), &'static str> {
    let exit = KINDS.get(kind as usize).ok_or("no such kind of exit")?;
    say!("\"do\":\"exits\"");
    loop {
        exit();
    }
}
