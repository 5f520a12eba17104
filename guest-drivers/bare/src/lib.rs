//! The base of a guest without an operating system: entry, console, IDT, memory by address, PCI.
//!
//! A binary names its main function with [`entry!`] and links with this folder's `link.ld` (see the build scripts of
//! the binaries). It is then started like a Linux kernel. It uses one vCPU. [`smp`] starts a second one.

#![no_std]

pub mod attempt;
pub mod boot;
pub mod console;
pub mod cpu;
pub mod memory;
pub mod pci;
pub mod smp;
pub mod trap;
pub mod virtio_pci;

/// Port of SLEEP_CONTROL_REG in the FADT (ACPI 6.5, 4.8.3.7).
const SLEEP_CONTROL: u16 = 0x600;
/// Value that powers off: SLP_TYP 5 in bits 4:2 and SLP_EN in bit 5.
const SOFT_OFF: u8 = 5 << 2 | 1 << 5;

/// Names the function that the guest runs: `fn(&bare::boot::Machine) -> !`.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        // SAFETY: it is the only symbol of this name in a guest, and has the type that the entry code expects.
        #[allow(unsafe_code, reason = "a symbol that the entry code calls by name")]
        #[unsafe(no_mangle)]
        extern "Rust" fn guest_main(machine: &$crate::boot::Machine) -> ! {
            $main(machine)
        }
    };
}

/// Powers the guest off.
pub fn power_off() -> ! {
    cpu::out8(SLEEP_CONTROL, SOFT_OFF);
    loop {
        cpu::halt();
    }
}
