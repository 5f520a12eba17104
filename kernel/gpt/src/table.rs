//! The partitions of a disk, and the choice of one by name.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use gpt_disk_types::Guid;

use crate::fault::Fault;

/// A partition. It is within the disk, and shares no block with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1: the place of its entry.
    pub number: u32,
    /// Its name: up to 36 characters of any kind, also none.
    pub label: String,
    /// Its unique GUID.
    pub guid: Guid,
    /// First block, in the disk's own block size.
    pub first: u64,
    /// Number of blocks, 1 or more.
    pub blocks: u64,
}

/// One of the two headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// In block 1.
    Primary,
    /// In the last block.
    Backup,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
        })
    }
}

/// Damage of a table that can still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One copy cannot be used. The other one is.
    Copy(Header, Fault),
    /// The backup header is in this block and not in the disk's last one: the disk has become larger.
    NotAtEnd(u64),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy(header, fault) => {
                write!(f, "the {header} copy of its partition table is damaged: {fault}; the other copy is used")
            }
            Self::NotAtEnd(block) => {
                write!(f, "the backup copy of its partition table ends at block {block}, not at the end of the disk")
            }
        }
    }
}

/// A table that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The disk's GUID.
    pub disk: Guid,
    /// Its partitions, in the order of their entries.
    pub partitions: Vec<Partition>,
    /// What is damaged.
    pub damage: Option<Damage>,
}

impl Table {
    /// Returns the partition whose label or unique GUID is `name`. A label is compared exactly, a GUID without regard
    /// to case.
    ///
    /// # Errors
    /// None has it, or several have. The text names them.
    pub fn find(&self, name: &str) -> Result<&Partition, String> {
        let guid = Guid::try_parse(name).ok();
        let is_named = |partition: &&Partition| partition.label == name || Some(partition.guid) == guid;
        let named: Vec<&Partition> = self.partitions.iter().filter(is_named).collect();
        match named[..] {
            [one] => Ok(one),
            [] if self.partitions.is_empty() => Err("its partition table is empty".into()),
            [] => Err(format!("its partition table has no such partition; it has {}", list(self.partitions.iter()))),
            _ => Err(format!("{} partitions are meant; expected one of {}", named.len(), list(named.into_iter()))),
        }
    }

    /// Returns the text that names a partition in the configuration: its label if that is unique and can be quoted, else
    /// its GUID.
    #[must_use]
    pub fn name(&self, partition: &Partition) -> String {
        let label = &partition.label;
        let is_plain =
            !label.is_empty() && label.chars().all(|c| (c.is_ascii_graphic() || c == ' ') && c != '"' && c != '\\');
        if is_plain && self.find(label).is_ok_and(|found| found.number == partition.number) {
            label.clone()
        } else {
            partition.guid.to_string()
        }
    }
}

/// Names partitions in a sentence. A label may have any characters, so it is escaped.
fn list<'p>(partitions: impl Iterator<Item = &'p Partition>) -> String {
    let one = |p: &Partition| format!("{} (\"{}\", {})", p.number, p.label.escape_debug(), p.guid);
    partitions.map(one).collect::<Vec<_>>().join(", ")
}
