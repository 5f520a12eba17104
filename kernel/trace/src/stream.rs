//! The format of a saved trace: on the operator's port, on COM2, in a file.
//!
//! A trace is a sequence of blocks. All numbers are little-endian. A block:
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 4 | [`MAGIC`] |
//! | 4 | 1 | what it is: [`HEADER`], [`CHUNK`], [`CAPTURES`], [`KERNEL`], [`SCOPE`]; a reader skips others |
//! | 5 | 3 | zero |
//! | 8 | 4 | bytes of its content, at most [`MAX_CONTENT`] |
//! | 12 | 4 | CRC-32 (ISO-HDLC) of bytes 4 to 11 and of the content |
//! | 16 | ... | its content |
//!
//! A reader that finds no good block looks for the next magic number. So it needs no beginning, and survives damage.
//!
//! Content of a header, which a trace begins with, and which may be repeated:
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 2 | [`VERSION`] |
//! | 2 | 6 | zero |
//! | 8 | 8 | frequency of the TSC in kHz |
//! | 16 | 8 | wall clock in seconds since 1970 at the TSC that follows; 0: there is no clock |
//! | 24 | 8 | TSC at that time |
//! | 32 | ... | names |
//!
//! A name: number of the [`Table`] (1 byte), its length (1), two bytes zero, its number in the table (4), what it belongs
//! to (4, [`NOTHING`] for nothing), and its UTF-8.
//!
//! Content of a chunk, which has records of one core that follow each other:
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 4 | the core |
//! | 4 | 4 | number of records, may be 0 |
//! | 8 | 8 | number of the first record, or of the next one if there is none |
//! | 16 | 8 | records of this core that were lost since its chunk before |
//! | 24 | ... | the records |
//!
//! Content of captures, which has captured frames of one core that follow each other: as that of a chunk, with
//! [captured frames](crate::capture) for records. They have numbers of their own.
//!
//! Content of a kernel's addresses, of which there may be any number: see [`KernelAddresses`].
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 4 | the core that has read them |
//! | 4 | 4 | the guest |
//! | 8 | 8 | TSC from which on they hold |
//! | 16 | 8 | TSC at which they were read |
//! | 24 | 8 | LSTAR |
//! | 32 | 8 | address of the handler of page faults |
//!
//! Content of a scope, which says what the chunks after it leave out on purpose: see [`Scope`].
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 4 | a record of an exit is there for so many exits |
//! | 4 | 4 | bit 0: records of exits have no RIP; the others are zero |

mod kernel;
mod read;
mod scope;
mod write;

use crc::{CRC_32_ISO_HDLC, Crc, Table as CrcTable};

pub use kernel::KernelAddresses;
pub use read::{Block, Captures, Chunk, Header, Name, Step, blocks, step};
pub use scope::Scope;
pub use write::{CapturesWriter, ChunkWriter, Clock, Full, HeaderWriter, collect, collect_captures, collect_changed};

/// The first four bytes of a block. They are not ASCII together, so text does not look like a block.
pub const MAGIC: [u8; 4] = *b"\x93Str";
/// Version of the format. Another number means that a reader of this version cannot read the records.
pub const VERSION: u16 = 1;
/// What a block is: names and clock.
pub const HEADER: u8 = 1;
/// What a block is: records of a core.
pub const CHUNK: u8 = 2;
/// What a block is: captured frames of a core.
pub const CAPTURES: u8 = 3;
/// What a block is: addresses in a guest's kernel.
pub const KERNEL: u8 = 4;
/// What a block is: what the chunks after it leave out on purpose.
pub const SCOPE: u8 = 5;
/// Bytes before a block's content.
pub const BLOCK_BYTES: usize = 16;
/// Most bytes of a block's content. It bounds what a reader checks for each magic number in bytes that are none.
pub const MAX_CONTENT: usize = 16 << 10;
/// Bytes of a header before its names.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a name before its text.
pub const NAME_BYTES: usize = 12;
/// Bytes of the content of a block with a kernel's addresses.
pub const KERNEL_BYTES: usize = 40;
/// Bytes of the content of a scope.
pub const SCOPE_BYTES: usize = 8;
/// Bytes of a chunk before its records.
pub const CHUNK_BYTES: usize = 24;
/// What a name belongs to: nothing.
pub const NOTHING: u32 = u32::MAX;

const CRC: Crc<u32, CrcTable<1>> = Crc::<u32, CrcTable<1>>::new(&CRC_32_ISO_HDLC);

/// The check of a block: over its bytes 4 to 11 and its content.
fn check(head: &[u8], content: &[u8]) -> u32 {
    let mut digest = CRC.digest();
    digest.update(head);
    digest.update(content);
    digest.finalize()
}

/// Tables of names in a header. Numbers are an interface. A reader keeps names of tables that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Table {
    /// Cores by number. The name is the role: `control`, `engine`, `guest`. A guest's core belongs to its guest, an
    /// engine's core to its engine.
    Core = 1,
    /// Guests by number.
    Guest = 2,
    /// Devices, by engine times 65536 plus the engine's slot. A device belongs to its guest.
    Device = 3,
    /// Reasons of exits, by `code`.
    Reason = 4,
    /// Kinds of records, by number.
    Kind = 5,
    /// States of a guest, by `code` of the kind `life`.
    State = 6,
    /// Causes of a drop, by `code` of the kind `frame-dropped`.
    Cause = 7,
    /// Why a guest has stopped, by `a` of the kind `life`, from 1.
    Stop = 8,
}

#[cfg(test)]
mod tests;
