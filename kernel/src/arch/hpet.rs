//! The machine's HPET: its timers' interrupts are switched off at boot, and it is not used after that. The crate `drivers`
//! decides what is written.

#![allow(unsafe_code, reason = "the registers are memory")]

use crate::registers::{self, Pages};
use drivers::generic::{Register, Space};
use drivers::hpet::{self, BYTES, Registers, Silenced};

/// The registers of an HPET whose page is mapped.
struct Mapped(u64);

impl Mapped {
    fn register(&self, offset: u16) -> Register {
        Register { space: Space::Memory, address: self.0.saturating_add(offset.into()), bytes: 4, bit: 0 }
    }
}

impl Registers for Mapped {
    fn read(&mut self, offset: u16) -> u32 {
        // SAFETY: only `silence` makes the value, when the page is mapped as registers. Reading these has no side effect.
        unsafe { registers::read(self.register(offset)) }.map_or(u32::MAX, |value| value as u32)
    }

    fn write(&mut self, offset: u16, value: u32) {
        // SAFETY: as above. `drivers::hpet` writes only where an HPET has answered, to stop its interrupts.
        let _ = unsafe { registers::write(self.register(offset), value.into()) };
    }
}

/// Stops the interrupts of the HPET whose registers ACPI says are at this physical address. `None`: none answers there, or
/// memory or another device is there. Call it before the cores have maps of their own.
pub fn silence(address: u64) -> Option<Silenced> {
    const PAGE: u64 = 4096;
    let in_a_page = address % PAGE <= PAGE.saturating_sub(BYTES);
    (in_a_page && Pages::default().map(address)).then(|| hpet::silence(&mut Mapped(address))).flatten()
}
