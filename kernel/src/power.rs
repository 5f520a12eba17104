//! Switches the machine off, or resets it.

#![allow(unsafe_code, reason = "ports that end everything")]

use crate::{arch::time, facts::facts, mem};
use boot::acpi::Register;
use core::ptr;
use drivers::power::{ResetAccess, ResetRegister};
use x86_64::instructions::port::Port;

/// Switches the machine off by ACPI. Returns if that is not possible.
pub fn switch_off() {
    if let Some(off) = &facts().platform.soft_off {
        // SAFETY: the ports come from this machine's FADT, and nothing else in sidecore uses them.
        unsafe { off.switch_off() };
        time::delay_micros(2_000_000);
    }
}

/// Resets the machine: by ACPI's reset register, by the chipset's, by the keyboard controller, or by a triple fault.
pub fn reset() -> ! {
    // The reset register is mapped in the tables of the boot only.
    mem::map_everything();
    let acpi = facts().platform.reset.map(|(register, value)| {
        let register = match register {
            Register::Port(port) => ResetRegister::Port(port),
            Register::Memory(at) => ResetRegister::Memory(at),
        };
        (register, value)
    });
    drivers::power::reset(&mut Machine, acpi);
    // SAFETY: the operator asked for a reset. An exception with an empty interrupt table ends in a triple fault.
    unsafe {
        let none = x86_64::structures::DescriptorTablePointer { limit: 0, base: x86_64::VirtAddr::zero() };
        x86_64::instructions::tables::lidt(&none);
        core::arch::asm!("ud2", options(noreturn));
    }
}

/// The machine, which is to be reset.
struct Machine;

impl ResetAccess for Machine {
    fn read_port(&mut self, port: u16) -> u8 {
        // SAFETY: the crate `drivers` reads the chipset's and the keyboard controller's reset registers.
        unsafe { Port::<u8>::new(port).read() }
    }

    fn write_port(&mut self, port: u16, value: u8) {
        // SAFETY: as above, and that of ACPI's FADT. The operator asked for a reset.
        unsafe { Port::<u8>::new(port).write(value) };
    }

    fn write_memory(&mut self, address: u64, value: u8) {
        if mem::map_device(address & !0xfff, 0x1000).is_ok() {
            // SAFETY: the page was not mapped before, so it is no memory. It is the register of ACPI's FADT, and the operator asked for a reset.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_volatile(value) };
        }
    }

    fn delay_micros(&mut self, micros: u64) {
        time::delay_micros(micros);
    }
}
