//! Reads and checks one copy of the table: a header and its entries (UEFI 2.10, 5.3.2 and 5.3.3).

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crc::{CRC_32_ISO_HDLC, Crc};
use gpt_disk_types::{GptHeader, GptPartitionEntry, Guid};

use crate::MAX_ARRAY;
use crate::disk::{Blocks, CHUNK, Shape};
use crate::fault::Fault;
use crate::table::{Header, Partition};

/// The checksum of headers and entries (UEFI 2.10, 5.3.2).
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Bytes of a header without what later revisions may append.
const HEADER_BYTES: usize = size_of::<GptHeader>();
/// Bytes of an entry without what may be appended.
const ENTRY_BYTES: usize = size_of::<GptPartitionEntry>();
/// The header's revision 1.0.
const REVISION: u32 = 0x1_0000;
/// Where the checksum is in a header.
const SUM_AT: core::ops::Range<usize> = 16..20;

/// A copy that is right in itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Copy {
    /// The block of the other header.
    pub alternate: u64,
    /// The disk's GUID.
    pub disk: Guid,
    /// Its partitions, in the order of their entries.
    pub partitions: Vec<Partition>,
}

/// The numbers of a header, checked against each other and the disk.
struct Layout {
    usable: (u64, u64),
    /// First block of the entries.
    array: u64,
    entries: u32,
    entry_bytes: u32,
    array_sum: u32,
}

/// Reads the copy whose header is in block `at`.
pub fn read(disk: &mut impl Blocks, shape: Shape, which: Header, at: u64) -> Result<Copy, Fault> {
    let mut block = vec![0; shape.block_bytes as usize];
    disk.read(at, &mut block).map_err(|why| Fault::Unreadable { block: at, why })?;
    let header = header(&block, at)?;
    let layout = layout(&header, shape, which, at)?;
    let mut partitions = entries(disk, shape, &layout)?;
    check(&mut partitions, layout.usable)?;
    Ok(Copy { alternate: header.alternate_lba.to_u64(), disk: header.disk_guid, partitions })
}

/// Decodes the header in `block`, and checks what can be checked without the disk.
pub fn header(block: &[u8], at: u64) -> Result<GptHeader, Fault> {
    let bytes = block.get(..HEADER_BYTES).ok_or(Fault::HeaderSize(0))?;
    let header: GptHeader = bytemuck::pod_read_unaligned(bytes);
    if !header.is_signature_valid() {
        return Err(Fault::NoHeader(at));
    }
    let revision = header.revision.0.to_u32();
    if revision != REVISION {
        return Err(Fault::Revision(revision));
    }
    let size = header.header_size.to_u32();
    let all = block.get(..size as usize).filter(|all| all.len() >= HEADER_BYTES).ok_or(Fault::HeaderSize(size))?;
    let mut digest = CRC.digest();
    digest.update(all.get(..SUM_AT.start).unwrap_or(&[]));
    digest.update(&[0; SUM_AT.end - SUM_AT.start]);
    digest.update(all.get(SUM_AT.end..).unwrap_or(&[]));
    let (said, is) = (header.header_crc32.0.to_u32(), digest.finalize());
    if said != is {
        return Err(Fault::HeaderSum { said, is });
    }
    let said = header.my_lba.to_u64();
    if said != at {
        return Err(Fault::Place { said, is: at });
    }
    Ok(header)
}

/// Checks the numbers of a header in block `at`.
fn layout(header: &GptHeader, shape: Shape, which: Header, at: u64) -> Result<Layout, Fault> {
    let (first, last) = (header.first_usable_lba.to_u64(), header.last_usable_lba.to_u64());
    let alternate = header.alternate_lba.to_u64();
    let (primary, backup) = match which {
        Header::Primary => (at, alternate),
        Header::Backup => (alternate, at),
    };
    if primary != 1 || backup <= primary || backup >= shape.blocks {
        return Err(Fault::Alternate(alternate));
    }
    if first <= primary || last < first || last >= backup {
        return Err(Fault::Usable(first, last));
    }
    let entry_bytes = header.size_of_partition_entry.to_u32();
    if !entry_bytes.is_power_of_two() || !(ENTRY_BYTES..=CHUNK).contains(&(entry_bytes as usize)) {
        return Err(Fault::EntrySize(entry_bytes));
    }
    let entries = header.number_of_partition_entries.to_u32();
    let bytes = u64::from(entries).saturating_mul(entry_bytes.into());
    if entries == 0 || bytes > MAX_ARRAY.into() {
        return Err(Fault::ArraySize(entries, entry_bytes));
    }
    let array = header.partition_entry_lba.to_u64();
    let blocks = bytes.div_ceil(shape.block_bytes.into());
    let room = match which {
        Header::Primary => primary.saturating_add(1)..first,
        Header::Backup => last.saturating_add(1)..backup,
    };
    if array < room.start || array.checked_add(blocks).is_none_or(|end| end > room.end) {
        return Err(Fault::ArrayPlace(array, blocks));
    }
    let array_sum = header.partition_entry_array_crc32.0.to_u32();
    Ok(Layout { usable: (first, last), array, entries, entry_bytes, array_sum })
}

/// Reads the entries, and checks their checksum.
fn entries(disk: &mut impl Blocks, shape: Shape, layout: &Layout) -> Result<Vec<Partition>, Fault> {
    let mut partitions = Vec::new();
    let mut digest = CRC.digest();
    let mut chunk = [0; CHUNK];
    let mut left = (layout.entries as usize).saturating_mul(layout.entry_bytes as usize);
    let (mut block, mut number) = (layout.array, 0_u32);
    while left != 0 {
        // The last chunk may be shorter, but has whole blocks.
        let bytes = left.min(CHUNK);
        let blocks = bytes.div_ceil(shape.block_bytes as usize);
        let chunk = chunk.get_mut(..blocks.saturating_mul(shape.block_bytes as usize)).unwrap_or_default();
        disk.read(block, chunk).map_err(|why| Fault::Unreadable { block, why })?;
        let chunk = chunk.get(..bytes).unwrap_or_default();
        digest.update(chunk);
        for entry in chunk.chunks_exact(layout.entry_bytes as usize) {
            number = number.saturating_add(1);
            partitions.extend(entry.get(..ENTRY_BYTES).and_then(|entry| partition(entry, number)));
        }
        block = block.saturating_add(blocks as u64);
        left = left.saturating_sub(bytes);
    }
    let (said, is) = (layout.array_sum, digest.finalize());
    if said == is { Ok(partitions) } else { Err(Fault::ArraySum { said, is }) }
}

/// Decodes an entry. Returns `None` if it is unused. A last block before the first gives 0 blocks.
fn partition(entry: &[u8], number: u32) -> Option<Partition> {
    let entry: GptPartitionEntry = bytemuck::pod_read_unaligned(entry);
    if !entry.is_used() {
        return None;
    }
    let (first, last) = (entry.starting_lba.to_u64(), entry.ending_lba.to_u64());
    let blocks = last.checked_sub(first).and_then(|more| more.checked_add(1)).unwrap_or(0);
    Some(Partition { number, label: label(&entry.name.0), guid: entry.unique_partition_guid, first, blocks })
}

/// Decodes a name: UTF-16, ended by a NUL or by the field's end.
fn label(name: &[u8]) -> String {
    let units = name.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)).take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Checks that the partitions are within the usable blocks and have none in common.
fn check(partitions: &mut [Partition], usable: (u64, u64)) -> Result<(), Fault> {
    for &Partition { number, first, blocks, .. } in partitions.iter() {
        // With 0 blocks, and with all 2^64, the last one is before the first.
        let last = first.wrapping_add(blocks).wrapping_sub(1);
        if blocks == 0 || last < first || first < usable.0 || last > usable.1 {
            return Err(Fault::Range { number, first, last, usable });
        }
    }
    partitions.sort_unstable_by_key(|partition| partition.first);
    let overlap = partitions.array_windows().find(|[one, next]| one.first.saturating_add(one.blocks) > next.first);
    let overlap = overlap.map(|[one, next]| Fault::Overlap(one.number.min(next.number), one.number.max(next.number)));
    partitions.sort_unstable_by_key(|partition| partition.number);
    overlap.map_or(Ok(()), Err)
}
