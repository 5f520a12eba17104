//! Switches the DMA remapping units (IOMMUs) off that the firmware has left on. `drivers::remapping` has the order, and
//! `findings::remapping` the words.

#![allow(unsafe_code, reason = "reads and writes the units' registers")]

use crate::{arch::time, facts::facts, mem, report};
use boot::acpi::{Maker, RemappingUnit};
use core::ptr;
use drivers::remapping::{Ended, NoAnswer, Registers, amd, vtd};

/// Switches all units off, and reports what each had on. Call it when no device masters the bus or sends interrupts as messages, before
/// a driver starts its device, and before the cores have maps of their own.
pub fn switch_off_all() {
    for &unit in &facts().platform.remapping {
        report::add_all([match switch_off(unit) {
            Some(ended) => findings::remapping::unit(unit, ended),
            None => findings::remapping::unreachable(unit),
        }]);
    }
}

/// Switches a unit off. Returns `None` if its registers cannot be mapped.
fn switch_off(unit: RemappingUnit) -> Option<Result<Ended, NoAnswer>> {
    let least = match unit.maker {
        Maker::Intel => vtd::LEAST_BYTES,
        Maker::Amd => amd::BYTES,
    };
    let mut registers = Mapped::new(unit.registers, least)?;
    Some(match unit.maker {
        Maker::Intel => {
            // Those of recorded faults may be behind the first page. A unit that is not there has no more.
            let capabilities = registers.read64(vtd::CAPABILITIES);
            if capabilities != u64::MAX {
                registers.extend(vtd::bytes(capabilities))?;
            }
            vtd::switch_off(&mut registers)
        }
        Maker::Amd => amd::switch_off(&mut registers),
    })
}

/// A unit's registers, mapped uncached at their physical address.
struct Mapped {
    start: u64,
    bytes: u64,
}

impl Mapped {
    /// Maps them. `start` and `bytes` are multiples of 4096.
    fn new(start: u64, bytes: u64) -> Option<Self> {
        start.checked_add(vtd::MOST_BYTES)?;
        mem::map_device(start, bytes).ok()?;
        Some(Self { start, bytes })
    }

    /// Maps what is missing of `bytes`, which is a multiple of 4096.
    fn extend(&mut self, bytes: u64) -> Option<()> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 {
            mem::map_device(self.start.checked_add(self.bytes)?, more).ok()?;
            self.bytes = bytes;
        }
        Some(())
    }

    /// The place of a register, if it is mapped.
    fn place<T>(&self, offset: u64) -> Option<*mut T> {
        let size = size_of::<T>() as u64;
        let mapped = offset.is_multiple_of(size) && offset.checked_add(size)? <= self.bytes;
        mapped.then(|| ptr::with_exposed_provenance_mut(self.start.wrapping_add(offset) as usize))
    }
}

impl Registers for Mapped {
    fn read32(&mut self, offset: u64) -> u32 {
        // SAFETY: `place` returns aligned addresses within the registers, which are mapped. Reading has no effect on memory.
        self.place::<u32>(offset).map_or(u32::MAX, |at| unsafe { at.read_volatile() })
    }

    fn write32(&mut self, offset: u64, value: u32) {
        if let Some(at) = self.place::<u32>(offset) {
            // SAFETY: as above. The crate `drivers` writes only what switches the unit off. No device masters the bus.
            unsafe { at.write_volatile(value) };
        }
    }

    fn read64(&mut self, offset: u64) -> u64 {
        // SAFETY: as in `read32`.
        self.place::<u64>(offset).map_or(u64::MAX, |at| unsafe { at.read_volatile() })
    }

    fn write64(&mut self, offset: u64, value: u64) {
        if let Some(at) = self.place::<u64>(offset) {
            // SAFETY: as in `write32`.
            unsafe { at.write_volatile(value) };
        }
    }

    fn micros(&mut self) -> u64 {
        time::now_micros()
    }
}
