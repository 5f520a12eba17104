//! The machine's I/O APICs: masked at boot, and not used after that. The crate `drivers` decides what is masked.

#![allow(unsafe_code, reason = "the registers are memory")]

use alloc::vec::Vec;
use core::ptr;
use drivers::ioapic::{self, Masked, Registers};

/// The registers of an I/O APIC at its physical address (82093AA data sheet 3.1).
struct Mapped(usize);

impl Mapped {
    /// Offset of the register that selects.
    const SELECT: usize = 0x00;
    /// Offset of the register that was selected.
    const WINDOW: usize = 0x10;

    fn at(&self, offset: usize) -> *mut u32 {
        ptr::with_exposed_provenance_mut(self.0.wrapping_add(offset))
    }
}

impl Registers for Mapped {
    fn read(&mut self, index: u8) -> u32 {
        // SAFETY: only `mask_all` makes the value. Its caller promises that the registers are mapped.
        unsafe {
            self.at(Self::SELECT).write_volatile(index.into());
            self.at(Self::WINDOW).read_volatile()
        }
    }

    fn write(&mut self, index: u8, value: u32) {
        // SAFETY: as in `read`. Only entries are written, and only to mask them.
        unsafe {
            self.at(Self::SELECT).write_volatile(index.into());
            self.at(Self::WINDOW).write_volatile(value);
        }
    }
}

/// Masks all entries of the I/O APICs at these physical addresses, but those of the firmware's. For each: its address, and what
/// became of it. An address that no I/O APIC can have is left alone: `None`.
///
/// # Safety
/// The boot tables are in use: they map the first 4 GiB at their physical addresses, and the firmware's memory types make
/// registers uncached. Only this core runs.
pub unsafe fn mask_all(addresses: &[u32]) -> Vec<(u32, Option<Masked>)> {
    /// Where firmware puts registers: above all memory below 4 GiB. Before, something wrong in a table would be a write to memory.
    const REGISTERS: u32 = 0xc000_0000;
    let masked = |&at: &u32| {
        let possible = at >= REGISTERS && at.is_multiple_of(0x100);
        (at, possible.then(|| ioapic::mask_all(&mut Mapped(at as usize))).flatten())
    };
    addresses.iter().map(masked).collect()
}
