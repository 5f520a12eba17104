//! Why an ELF file cannot be started in a guest's memory.

use core::fmt;

use memory::BadAddress;

use crate::elf;

/// Lowest address of a segment.
pub(super) const ONE_MIB: u64 = 0x10_0000;

/// Why a file cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the message says it")]
pub enum Error {
    Elf(elf::Error),
    OutsideMemory { header: u64, address: u64, size: u64, room: u64 },
    Overlap { first: u64, second: u64, address: u64 },
    EntryOutside { entry: u64 },
    NoRoomForInitrd { len: u64, from: u64, to: u64 },
    CommandLineTooLong { len: u64, limit: u64 },
    CommandLineHasZero { at: u64 },
    Memory(BadAddress),
}

impl From<BadAddress> for Error {
    fn from(e: BadAddress) -> Self {
        Self::Memory(e)
    }
}

impl From<elf::Error> for Error {
    fn from(e: elf::Error) -> Self {
        Self::Elf(e)
    }
}

impl core::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Elf(e) => e.fmt(f),
            Self::OutsideMemory { header, address, size, room } => write!(
                f,
                "the ELF file's segment with its header at byte {header:#x} takes {size:#x} bytes of memory at \
                 {address:#x}; expected a place between {ONE_MIB:#x} and {room:#x}, the end of the guest's memory below \
                 3 GiB"
            ),
            Self::Overlap { first, second, address } => write!(
                f,
                "the ELF file's segments with their headers at bytes {first:#x} and {second:#x} overlap at {address:#x}"
            ),
            Self::EntryOutside { entry } => {
                write!(f, "the ELF file's PVH entry {entry:#x} is in none of its segments")
            }
            Self::NoRoomForInitrd { len, from, to } => {
                write!(f, "the initrd of {len:#x} bytes does not fit between the kernel's end at {from:#x} and {to:#x}")
            }
            Self::CommandLineTooLong { len, limit } => {
                write!(f, "the command line has {len} bytes; expected at most {limit}")
            }
            Self::CommandLineHasZero { at } => write!(f, "the command line has a zero byte at position {at}"),
            Self::Memory(e) => write!(f, "the guest's memory has no room for the boot structures: {e}"),
        }
    }
}
