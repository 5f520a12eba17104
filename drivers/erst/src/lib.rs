//! The firmware's store of records (ACPI 6.5, 18.5, "Error Serialization"): small records with a number, which outlive a reset and a
//! cut of the power. ACPI's table ERST has a little program for each step ([`Table`], [`Program`]); [`Store`] has the order of the
//! steps. Nothing here touches hardware: that is [`Bus`].
//!
//! A store whose range of records is non-volatile memory itself (attribute 2) is refused, as Linux does.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

use core::fmt;

mod program;
mod store;
mod table;
#[cfg(test)]
mod testing;

pub use drivers::generic::{Register, Space};
pub use program::Program;
pub use store::Store;
pub use table::{Action, Table};

/// What a program and its store reach. All waits are bounded by the caller of it.
pub trait Bus {
    /// Reads a register of 1, 2, 4 or 8 bytes. `None`: it cannot be reached.
    fn read(&mut self, space: Space, address: u64, bytes: u8) -> Option<u64>;

    /// Writes a register of 1, 2, 4 or 8 bytes. `None`: it cannot be reached.
    fn write(&mut self, space: Space, address: u64, bytes: u8, value: u64) -> Option<()>;

    /// Copies bytes of the range of records to `to`. `None`: they cannot be reached.
    fn load(&mut self, address: u64, to: &mut [u8]) -> Option<()>;

    /// Copies bytes to the range of records. `None`: they cannot be reached.
    fn store(&mut self, address: u64, from: &[u8]) -> Option<()>;

    /// Waits so many microseconds.
    fn wait(&mut self, micros: u64);
}

/// Why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The table has no program for this action, which is not optional.
    Missing(Action),
    /// A program has an instruction of this number, which is unknown or not supported.
    Instruction(u8),
    /// A program names a register that cannot be reached.
    Unreachable(u64),
    /// A program does not end.
    Endless(Action),
    /// The firmware was busy for too long.
    Busy,
    /// The firmware answered with this status (table 18.21): 1 no space, 2 not available, 3 failed, and others.
    Status(u64),
    /// There is no such record.
    NotFound,
    /// A record does not fit into the range of records, which has so many bytes.
    TooLong(u64),
    /// The range of records is of a kind that is not supported: its attributes.
    Range(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(action) => write!(f, "the table has no program for {action:?}"),
            Self::Instruction(number) => write!(f, "instruction {number:#x} is not supported"),
            Self::Unreachable(address) => write!(f, "the register at {address:#x} cannot be reached"),
            Self::Endless(action) => write!(f, "the program for {action:?} does not end"),
            Self::Busy => f.write_str("the firmware stays busy"),
            Self::Status(1) => f.write_str("there is no space"),
            Self::Status(2) => f.write_str("the store is not available"),
            Self::Status(status) => write!(f, "the firmware answers with status {status}"),
            Self::NotFound => f.write_str("there is no such record"),
            Self::TooLong(bytes) => write!(f, "a record may have {bytes} bytes"),
            Self::Range(attributes) => {
                write!(f, "a range of records with the attributes {attributes:#x} is not supported")
            }
        }
    }
}
