//! Switches the machine off, or resets it.

#![allow(unsafe_code, reason = "ports that end everything")]

use crate::{arch::time, facts::facts, mem};
use boot::acpi::Register;
use core::ptr;
use x86_64::instructions::port::Port;

/// Switches the machine off by ACPI. Returns if that is not possible.
pub fn switch_off() {
    if let Some(off) = &facts().platform.soft_off {
        // SAFETY: the ports come from this machine's FADT, and nothing else in sidecore uses them.
        unsafe { off.switch_off() };
        time::delay_micros(2_000_000);
    }
}

/// Resets the machine. Tries the ACPI reset register, then the keyboard controller, then a triple fault.
pub fn reset() -> ! {
    // The reset register is mapped in the tables of the boot only.
    mem::map_everything();
    // SAFETY: these are the machine's reset registers, and the operator asked for a reset. If they fail, an exception
    // with an empty interrupt table ends in a triple fault.
    unsafe {
        match facts().platform.reset {
            Some((Register::Port(port), value)) => Port::<u8>::new(port).write(value),
            Some((Register::Memory(at), value)) if mem::map_device(at & !0xfff, 0x1000).is_ok() => {
                ptr::with_exposed_provenance_mut::<u8>(at as usize).write_volatile(value);
            }
            _ => {}
        }
        time::delay_micros(50_000);
        Port::<u8>::new(0x64).write(0xfe_u8);
        time::delay_micros(50_000);
        let none = x86_64::structures::DescriptorTablePointer { limit: 0, base: x86_64::VirtAddr::zero() };
        x86_64::instructions::tables::lidt(&none);
        core::arch::asm!("ud2", options(noreturn));
    }
}
