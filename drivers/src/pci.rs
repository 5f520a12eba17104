//! PCI configuration space of the machine itself, by ECAM where ACPI names one and by ports CF8/CFC otherwise
//! (PCI Local Bus 3.0, 3.2.2.3; PCI Express 7.2.2).

#![allow(unsafe_code, reason = "configuration space is reached by ports or by uncached memory")]

use x86_64::instructions::port::Port;

/// A function's place: bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

/// A way to configuration space.
#[derive(Clone, Copy, Debug)]
pub enum ConfigSpace {
    /// Ports 0xCF8 and 0xCFC: segment 0, the first 256 bytes of each function.
    Ports,
    /// Memory: physical address of bus `first`, and the buses it covers.
    Ecam {
        /// Address of the first bus's first function.
        base: u64,
        /// First bus.
        first: u8,
        /// Last bus.
        last: u8,
    },
}

/// Command register: bus master enable.
const BUS_MASTER: u32 = 1 << 2;

impl ConfigSpace {
    /// Buses that can be reached.
    #[must_use]
    pub fn buses(&self) -> core::ops::RangeInclusive<u8> {
        match *self {
            Self::Ports => 0..=255,
            Self::Ecam { first, last, .. } => first..=last,
        }
    }

    /// Reads the 32-bit register at `offset` (a multiple of 4, below 256).
    ///
    /// # Safety
    /// Only one CPU may use the ports at a time; an ECAM region must be mapped, uncached, at its physical address.
    #[must_use]
    pub unsafe fn read(&self, at: Address, offset: u8) -> u32 {
        match self.locate(at, offset) {
            // SAFETY: the caller's promise; reading configuration space has no side effect in the standard header.
            Ok(p) => unsafe { p.read_volatile() },
            // SAFETY: as above.
            Err(selector) => unsafe {
                Port::new(0xcf8).write(selector);
                Port::new(0xcfc).read()
            },
        }
    }

    /// Writes the 32-bit register at `offset` (a multiple of 4, below 256).
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`]; and what the write does to the device must be wanted.
    pub unsafe fn write(&self, at: Address, offset: u8, value: u32) {
        match self.locate(at, offset) {
            // SAFETY: the caller's promise.
            Ok(p) => unsafe { p.write_volatile(value) },
            // SAFETY: as above.
            Err(selector) => unsafe {
                Port::new(0xcf8).write(selector);
                Port::new(0xcfc).write(value);
            },
        }
    }

    fn locate(&self, at: Address, offset: u8) -> Result<*mut u32, u32> {
        let function = u32::from(at.device & 31) << 3 | u32::from(at.function & 7);
        match *self {
            Self::Ecam { base, first, .. } => {
                let bus = u64::from(at.bus.saturating_sub(first));
                let p = base + (bus << 20) + (u64::from(function) << 12) + u64::from(offset & !3);
                Ok(core::ptr::with_exposed_provenance_mut(p as usize))
            }
            Self::Ports => Err(1 << 31 | u32::from(at.bus) << 16 | function << 8 | u32::from(offset & !3)),
        }
    }

    /// Calls `found` with each function that answers, its vendor and device, and its class code (24 bits).
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    pub unsafe fn scan(&self, mut found: impl FnMut(Address, u16, u16, u32)) {
        for bus in self.buses() {
            for device in 0..32 {
                for function in 0..8 {
                    let at = Address { bus, device, function };
                    // SAFETY: the caller's promise.
                    let (id, class, header) =
                        unsafe { (self.read(at, 0), self.read(at, 8) >> 8, self.read(at, 12) >> 16) };
                    if id & 0xffff != 0xffff {
                        found(at, id as u16, (id >> 16) as u16, class);
                    }
                    if function == 0 && (id & 0xffff == 0xffff || header & 0x80 == 0) {
                        break;
                    }
                }
            }
        }
    }

    /// Clears the bus-master bit of one function, so that it can no longer write memory. Bridges are left alone by
    /// the caller's choice, not here.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    pub unsafe fn clear_bus_master(&self, at: Address) {
        // SAFETY: the caller's promise. The upper half is the status register, whose bits clear on writing 1: zeroes
        // leave them.
        unsafe {
            let command = self.read(at, 4) & 0xffff;
            self.write(at, 4, command & !BUS_MASTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, ConfigSpace};

    #[test]
    fn registers_are_where_the_specifications_put_them() {
        let at = Address { bus: 2, device: 31, function: 7 };
        assert_eq!(ConfigSpace::Ports.locate(at, 0x3f), Err(0x8002_ff3c));
        let ecam = ConfigSpace::Ecam { base: 0xb000_0000, first: 1, last: 255 };
        assert_eq!(ecam.locate(at, 0x10).map(|p| p as usize), Ok(0xb01f_f010));
    }
}
