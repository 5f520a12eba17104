//! Reads ACPI's table ERST (ACPI 6.5, 18.5.1): a head, and instructions of 32 bytes each.

use alloc::vec::Vec;
use drivers::generic::{self, Register};

/// Bytes of the header that each ACPI table has, and of what ERST adds to it.
const HEADER: usize = 48;
/// Bytes of an instruction.
const ENTRY: usize = 32;
/// Most instructions that are read. A table has about 30.
const MOST: usize = 512;

/// What a program is for (table 18.20, "Serialization Actions").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// A record is to be written.
    BeginWrite = 0,
    /// A record is to be read.
    BeginRead = 1,
    /// A record is to be cleared.
    BeginClear = 2,
    /// The operation is over.
    End = 3,
    /// Where the record is in the range of records.
    SetOffset = 4,
    /// Do it.
    Execute = 5,
    /// Whether it is being done.
    Busy = 6,
    /// How it ended.
    Status = 7,
    /// The number of a record in the store; at each call that of the next one.
    RecordId = 8,
    /// The number of the record that is meant.
    SetRecordId = 9,
    /// How many records there are.
    Count = 0xa,
    /// Address of the range of records.
    Range = 0xd,
    /// Its bytes.
    Length = 0xe,
    /// Its attributes.
    Attributes = 0xf,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub action: u8,
    pub instruction: u8,
    pub flags: u8,
    /// `None`: its address makes no sense. Some instructions use none.
    pub register: Option<Register>,
    pub value: u64,
    pub mask: u64,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(pub(crate) Vec<Entry>);

impl Table {
    /// Reads a table with its header. `None`: it is cut off.
    #[must_use]
    pub fn new(table: &[u8]) -> Option<Self> {
        let count = u32::from_le_bytes(*table.get(44..)?.first_chunk()?) as usize;
        let entries = table.get(HEADER..)?.as_chunks::<ENTRY>().0;
        if count > MOST || count > entries.len() {
            return None;
        }
        Some(Self(entries.iter().take(count).filter_map(entry).collect()))
    }

    /// The registers of all programs.
    pub fn registers(&self) -> impl Iterator<Item = Register> {
        self.0.iter().filter_map(|entry| entry.register)
    }
}

fn entry(bytes: &[u8; ENTRY]) -> Option<Entry> {
    let quad = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let [action, instruction, flags, _, rest @ ..] = *bytes;
    let register = Register::new(rest.first_chunk::<{ generic::BYTES }>()?);
    Some(Entry { action, instruction, flags, register, value: quad(16)?, mask: quad(24)? })
}
