//! Why an ELF file is refused.

use core::fmt;

/// Most segments to load. A file's headers include others, for example its notes.
pub const MAX_SEGMENTS: usize = 32;

/// Why a file cannot be started by the PVH entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the message says it")]
pub enum Error {
    TooShort { len: u64, needed: u64, what: &'static str },
    Field { name: &'static str, offset: u64, value: u64, expected: &'static str },
    TooManySegments,
    NoSegments,
    NoEntry,
    TwoEntries { first: u64, second: u64 },
}

impl core::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { len, needed, what } => {
                write!(f, "the ELF file has {len} bytes, but {what} ends at byte {needed}")
            }
            Self::Field { name, offset, value, expected } => {
                write!(f, "the ELF file has {name} = {value:#x} at byte {offset:#x}; expected {expected}")
            }
            Self::TooManySegments => write!(f, "the ELF file has more than {MAX_SEGMENTS} segments to load"),
            Self::NoSegments => write!(f, "the ELF file has no segment to load"),
            Self::NoEntry => write!(
                f,
                "the ELF file has no PVH entry: expected a note of owner \"Xen\" and type 18 (a Linux kernel needs \
                 CONFIG_PVH)"
            ),
            Self::TwoEntries { first, second } => {
                write!(f, "the ELF file has two PVH entries, {first:#x} and {second:#x}; expected one")
            }
        }
    }
}
