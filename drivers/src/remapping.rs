//! DMA remapping units (IOMMUs) as the firmware leaves them: what of a unit is on, and switching it off. sidecore uses none. A unit
//! that translates by the firmware's tables keeps every device of ours from the memory that we name to it, and reports that
//! nowhere.
//!
//! - [`vtd`]: Intel's units (VT-d).
//! - [`amd`]: AMD's units.
//!
//! Call it when no device masters the bus and none sends interrupts as messages: a unit that goes off lets through what is
//! still on its way.

pub mod amd;
#[cfg(test)]
mod model;
pub mod vtd;

use core::fmt;

/// Longest time for a unit to follow a command, in microseconds. The manuals name none. Units need microseconds.
pub const PATIENCE: u64 = 1_000_000;

/// The registers of a unit, and the time. Offsets are in bytes, and multiples of the register's size. An access behind the
/// memory that is mapped reads as all ones, or does nothing.
pub trait Registers {
    /// Reads 32 bits.
    fn read32(&mut self, offset: u64) -> u32;
    /// Writes 32 bits.
    fn write32(&mut self, offset: u64, value: u32);
    /// Reads 64 bits.
    fn read64(&mut self, offset: u64) -> u64;
    /// Writes 64 bits.
    fn write64(&mut self, offset: u64, value: u64);
    /// Microseconds since a fixed moment. It grows while it is asked again and again.
    fn micros(&mut self) -> u64;
}

bitflags::bitflags! {
    /// Parts of a unit that can be on.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Parts: u8 {
        /// Addresses of devices are translated, or refused.
        const TRANSLATION = 1 << 0;
        /// Interrupts of devices are remapped. AMD's units do that with [`Parts::TRANSLATION`].
        const INTERRUPTS = 1 << 1;
        /// Ranges of memory are closed to devices (VT-d's protected memory regions).
        const PROTECTED_MEMORY = 1 << 2;
        /// The unit reads commands from a queue in memory.
        const COMMANDS = 1 << 3;
        /// The unit writes faults, or requests of devices, to memory.
        const LOG = 1 << 4;
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::TRANSLATION, "translation"),
            (Self::INTERRUPTS, "interrupt remapping"),
            (Self::PROTECTED_MEMORY, "protected memory"),
            (Self::COMMANDS, "the command queue"),
            (Self::LOG, "a log in memory"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(part, _)| self.contains(*part)) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// What became of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What was on.
    pub was: Parts,
    /// What of that did not go off within [`PATIENCE`].
    pub left: Parts,
    /// The unit had recorded that it refused an access of a device.
    pub had_refused: bool,
}

/// Nothing answers at the unit's address: its registers read as all ones or, where they may not, as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

/// Waits until `done`. Returns false after [`PATIENCE`].
fn wait<R: Registers>(unit: &mut R, mut done: impl FnMut(&mut R) -> bool) -> bool {
    let begin = unit.micros();
    loop {
        // The clock is read first: the last look is after the limit, however long this core was kept from it.
        let over = unit.micros().saturating_sub(begin) > PATIENCE;
        if done(unit) {
            return true;
        }
        if over {
            return false;
        }
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    #[test]
    fn parts_have_names() {
        assert_eq!(Parts::empty().to_string(), "");
        assert_eq!((Parts::TRANSLATION | Parts::COMMANDS).to_string(), "translation, the command queue");
        let all = Parts::all().to_string();
        assert_eq!(all.split(", ").count(), Parts::all().iter().count(), "{all}");
    }
}
