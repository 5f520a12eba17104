//! Reads both copies of a table and decides which is used.
//!
//! | primary | backup | outcome |
//! |---|---|---|
//! | good | good, the same | the table |
//! | good | good, different | refused: nobody can say which is meant. An interrupted change of the table leaves that |
//! | good | damaged | the primary is used; the damage is named |
//! | damaged | good | the backup is used; the damage is named |
//! | damaged | damaged | refused; both are named |
//!
//! A copy has two checksums, so a good one holds what was written. Guests keep their partitions when one copy is lost:
//! that is what the second is for. It is left to the operator to repair the other.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use core::fmt;
use core::num::NonZero;

use crate::copy::{self, Copy};
use crate::disk::{Blocks, Shape};
use crate::fault::Fault;
use crate::mbr;
use crate::table::{Damage, Header, Table};

/// Block sizes that tables are written for.
const BLOCK_SIZES: [u32; 2] = [512, 4096];
/// The largest of them.
const LARGEST: u32 = 4096;

/// Why a disk has no table that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its blocks have other than 512 or 4,096 bytes, or it has too few of them for a table.
    Shape(Shape),
    /// Block 0 cannot be read.
    Unreadable(String),
    /// There is no table.
    NoTable,
    /// The table is for blocks of so many bytes, and the disk has others.
    BlockSize {
        /// Bytes of the blocks that it was written for.
        table: u32,
        /// Bytes of the disk's blocks.
        disk: u32,
    },
    /// There is a header, but block 0 does not protect it: other software takes the disk for empty, or for one with
    /// another kind of table.
    NotProtected,
    /// Both copies are damaged: the primary and the backup one.
    Both(Box<(Fault, Fault)>),
    /// Both copies are good, and are different.
    Different,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(shape) => {
                write!(f, "a disk of {} blocks of {} bytes has no partition table", shape.blocks, shape.block_bytes)
            }
            Self::Unreadable(why) => write!(f, "block 0 cannot be read: {why}"),
            Self::NoTable => f.write_str("it has no GUID partition table"),
            Self::BlockSize { table, disk } => {
                write!(f, "its partition table is for blocks of {table} bytes; its blocks have {disk} bytes")
            }
            Self::NotProtected => f.write_str(
                "it has a GUID partition table, but its block 0 is no protective MBR; expected a record of type 0xEE",
            ),
            Self::Both(faults) => {
                let (primary, backup) = &**faults;
                write!(
                    f,
                    "both copies of its partition table are damaged: the primary: {primary}; the backup: {backup}"
                )
            }
            Self::Different => f.write_str(
                "the two copies of its partition table are good and differ; repair it, so that both say the same",
            ),
        }
    }
}

/// Reads the partition table of a disk.
///
/// # Errors
/// It has none that can be used.
pub fn read(disk: &mut impl Blocks, shape: Shape) -> Result<Table, Refusal> {
    // MBR, headers, a block of each array, and one for a partition.
    if !BLOCK_SIZES.contains(&shape.block_bytes) || shape.blocks < 6 {
        return Err(Refusal::Shape(shape));
    }
    let mut block = vec![0; shape.block_bytes as usize];
    disk.read(0, &mut block).map_err(Refusal::Unreadable)?;
    let is_protected = mbr::is_protective(&block);
    let end = shape.blocks.saturating_sub(1);
    let primary = copy::read(disk, shape, Header::Primary, 1);
    // The primary says where the backup is. Without it, it has to be at the end.
    let backup_at = primary.as_ref().map_or(end, |copy| copy.alternate);
    let backup = copy::read(disk, shape, Header::Backup, backup_at);
    if let (Err(Fault::NoHeader(_)), Err(Fault::NoHeader(_))) = (&primary, &backup) {
        return Err(match other_size(disk, shape) {
            Some(table) => Refusal::BlockSize { table, disk: shape.block_bytes },
            None => Refusal::NoTable,
        });
    }
    if !is_protected {
        return Err(Refusal::NotProtected);
    }
    let (copy, damage) = match (primary, backup) {
        (Ok(primary), Ok(backup)) if is_same(&primary, &backup) => {
            (primary, (backup_at != end).then_some(Damage::NotAtEnd(backup_at)))
        }
        (Ok(_), Ok(_)) => return Err(Refusal::Different),
        (Ok(primary), Err(fault)) => (primary, Some(Damage::Copy(Header::Backup, fault))),
        (Err(fault), Ok(backup)) => (backup, Some(Damage::Copy(Header::Primary, fault))),
        (Err(primary), Err(backup)) => return Err(Refusal::Both(Box::new((primary, backup)))),
    };
    Ok(Table { disk: copy.disk, partitions: copy.partitions, damage })
}

/// Whether two copies say the same. Each names the other's place, so that differs.
fn is_same(primary: &Copy, backup: &Copy) -> bool {
    (primary.disk, &primary.partitions) == (backup.disk, &backup.partitions)
}

/// Looks for a primary header where it is on a disk with blocks of another size. Returns that size.
fn other_size(disk: &mut impl Blocks, shape: Shape) -> Option<u32> {
    let block_bytes = NonZero::new(shape.block_bytes)?;
    BLOCK_SIZES.into_iter().filter(|size| *size != shape.block_bytes).find(|&size| {
        // A block of that size behind the first one. The disk's blocks around it are read.
        let mut around = vec![0; (LARGEST as usize).max(shape.block_bytes as usize)];
        let first = u64::from(size / block_bytes);
        let skipped = (size % block_bytes) as usize;
        let is_there = first.saturating_add(around.len() as u64 / NonZero::<u64>::from(block_bytes)) <= shape.blocks;
        is_there
            && disk.read(first, &mut around).is_ok()
            && around
                .get(skipped..skipped.saturating_add(size as usize))
                .is_some_and(|block| copy::header(block, 1).is_ok())
    })
}
