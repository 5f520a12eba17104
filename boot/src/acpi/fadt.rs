//! The Fixed ACPI Description Table (ACPI 6.5, 5.2.9).

use crate::words::{byte, double, quad};

/// RESET_REG_SUP.
const CAN_RESET: u32 = 1 << 10;
/// HW_REDUCED_ACPI.
const HARDWARE_REDUCED: u32 = 1 << 20;
/// The revision from which on the table has addresses of 64 bits.
const WIDE: u8 = 2;

/// Where a register is (5.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// An I/O port.
    Port(u16),
    /// A physical address.
    Memory(u64),
}

impl Register {
    /// The port, unless it is 0.
    #[must_use]
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Port(port) => Some(port).filter(|&port| port != 0),
            Self::Memory(_) => None,
        }
    }
}

/// The table. A field that is behind its end is absent.
#[derive(Clone, Copy, Debug)]
pub struct Fadt<'a>(&'a [u8]);

impl<'a> Fadt<'a> {
    /// The whole table, with its header.
    #[must_use]
    pub const fn new(table: &'a [u8]) -> Self {
        Self(table)
    }

    fn is_wide(&self) -> bool {
        byte(self.0, 8).is_some_and(|revision| revision >= WIDE)
    }

    fn flags(&self) -> u32 {
        double(self.0, 112).unwrap_or(0)
    }

    /// A register as a generic address structure.
    fn generic(&self, at: usize) -> Option<Register> {
        let address = quad(self.0, at + 4)?;
        match byte(self.0, at)? {
            0 => Some(Register::Memory(address)),
            1 => u16::try_from(address).ok().map(Register::Port),
            _ => None,
        }
    }

    /// A register that has two fields: a wide one, which counts unless it is 0, and a port.
    fn either(&self, wide: usize, port: usize) -> Option<Register> {
        if self.is_wide() && quad(self.0, wide + 4).is_some_and(|address| address != 0) {
            return self.generic(wide);
        }
        let port = double(self.0, port).filter(|&port| port != 0)?;
        u16::try_from(port).ok().map(Register::Port)
    }

    /// Physical address of the DSDT.
    #[must_use]
    pub fn dsdt(&self) -> Option<u64> {
        let wide = quad(self.0, 140).filter(|&address| self.is_wide() && address != 0);
        wide.or_else(|| double(self.0, 40).map(u64::from).filter(|&address| address != 0))
    }

    /// Whether the machine has none of ACPI's fixed registers.
    #[must_use]
    pub fn is_hardware_reduced(&self) -> bool {
        self.flags() & HARDWARE_REDUCED != 0
    }

    /// PM1a_CNT.
    #[must_use]
    pub fn pm1a_control(&self) -> Option<Register> {
        self.either(172, 64)
    }

    /// PM1b_CNT, which few machines have.
    #[must_use]
    pub fn pm1b_control(&self) -> Option<Register> {
        self.either(184, 68)
    }

    /// The port and the value that switch ACPI mode on. `None`: the machine has no other mode.
    #[must_use]
    pub fn enable(&self) -> Option<(u16, u8)> {
        let port = double(self.0, 48).and_then(|port| u16::try_from(port).ok()).filter(|&port| port != 0)?;
        byte(self.0, 52).filter(|&value| value != 0).map(|value| (port, value))
    }

    /// Port of the PM timer.
    #[must_use]
    pub fn pm_timer(&self) -> Option<u16> {
        byte(self.0, 91).filter(|&len| len == 4)?;
        self.either(208, 76)?.port()
    }

    /// The reset register, and the value that resets the machine (4.8.3.6).
    #[must_use]
    pub fn reset(&self) -> Option<(Register, u8)> {
        if self.flags() & CAN_RESET == 0 {
            return None;
        }
        self.generic(116).zip(byte(self.0, 128))
    }
}
