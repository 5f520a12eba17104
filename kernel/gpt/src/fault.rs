//! What is wrong with one copy of a partition table.

use alloc::string::String;
use core::fmt;

use crate::MAX_ARRAY;

/// Why a copy of the table cannot be used. Blocks are in the disk's own block size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A block cannot be read.
    Unreadable {
        /// The first block of the read.
        block: u64,
        /// Why.
        why: String,
    },
    /// The block has no header: the signature is missing.
    NoHeader(u64),
    /// The header has another revision than 1.0.
    Revision(u32),
    /// The header has less than 92 bytes, or more than a block.
    HeaderSize(u32),
    /// The header has another checksum than it says.
    HeaderSum {
        /// In the header.
        said: u32,
        /// Of its bytes.
        is: u32,
    },
    /// The header says that it is in another block than it is.
    Place {
        /// In the header.
        said: u64,
        /// Where it is.
        is: u64,
    },
    /// The other header's block makes no sense.
    Alternate(u64),
    /// The range of usable blocks is empty, or holds blocks of the table itself.
    Usable(u64, u64),
    /// An entry has other than 128, 256, 512, 1,024, 2,048 or 4,096 bytes.
    EntrySize(u32),
    /// The array of entries is empty or has more than [`MAX_ARRAY`] bytes: entries, and bytes of an entry.
    ArraySize(u32, u32),
    /// The array of entries is not between the header and the usable blocks: its first block and its blocks.
    ArrayPlace(u64, u64),
    /// The entries have another checksum than the header says.
    ArraySum {
        /// In the header.
        said: u32,
        /// Of the entries.
        is: u32,
    },
    /// A partition has no blocks, or blocks that are not usable.
    Range {
        /// The partition's number, from 1.
        number: u32,
        /// Its first block.
        first: u64,
        /// Its last block.
        last: u64,
        /// First and last usable block.
        usable: (u64, u64),
    },
    /// Two partitions have blocks in common: their numbers, from 1.
    Overlap(u32, u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { block, why } => write!(f, "block {block} cannot be read: {why}"),
            Self::NoHeader(block) => write!(f, "block {block} has no header (no `EFI PART`)"),
            Self::Revision(revision) => write!(f, "the header has revision {revision:#x}; expected 0x10000"),
            Self::HeaderSize(size) => write!(f, "the header has {size} bytes; expected 92 bytes to a block"),
            Self::HeaderSum { said, is } => {
                write!(f, "the header's checksum is {is:#010x}; the header says {said:#010x}")
            }
            Self::Place { said, is } => write!(f, "the header is in block {is}; it says block {said}"),
            Self::Alternate(block) => write!(f, "the header says that the other header is in block {block}"),
            Self::Usable(first, last) => write!(f, "the header says that blocks {first} to {last} are usable"),
            Self::EntrySize(size) => {
                write!(f, "an entry has {size} bytes; expected 128 times a power of two, up to 4096")
            }
            Self::ArraySize(entries, size) => {
                write!(f, "there are {entries} entries of {size} bytes; expected 1 to {MAX_ARRAY} bytes in all")
            }
            Self::ArrayPlace(first, blocks) => {
                write!(f, "{blocks} blocks of entries begin at block {first}, where the table has no room")
            }
            Self::ArraySum { said, is } => {
                write!(f, "the entries' checksum is {is:#010x}; the header says {said:#010x}")
            }
            Self::Range { number, first, last, usable } => write!(
                f,
                "partition {number} has blocks {first} to {last}; usable are blocks {} to {}",
                usable.0, usable.1
            ),
            Self::Overlap(one, other) => write!(f, "partitions {one} and {other} have blocks in common"),
        }
    }
}
