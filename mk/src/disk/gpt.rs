//! Writes a GUID partition table (UEFI 2.10, chapter 5.3): protective MBR, both headers, both entry arrays.

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

use anyhow::{Context as _, Result, anyhow, ensure};
use gpt_disk_io::{BlockIoAdapter, Disk};
use gpt_disk_types::{
    BlockSize, Crc32, GptHeader, GptPartitionEntry, GptPartitionEntryArray, GptPartitionEntryArrayLayout,
    GptPartitionEntrySize, GptPartitionType, Guid, Lba, LbaLe, U32Le,
};

/// Start of partitions is a multiple of this many bytes. It is a multiple of every block and erase size in use.
pub const ALIGNMENT: u64 = 1 << 20;
/// Entries of the array. UEFI demands room for 16 KiB of entries, and every tool expects this number.
const ENTRIES: u32 = 128;
/// Bytes of an entry.
const ENTRY_SIZE: u32 = 128;
/// The entry array's first block: after the MBR and the header.
const ARRAY: u64 = 2;

/// A partition that is to be made.
pub struct Partition<'a> {
    /// Its name: at most 35 characters.
    pub name: &'a str,
    /// What it holds.
    pub kind: GptPartitionType,
    /// Its own GUID.
    pub guid: Guid,
    /// Its size in bytes, rounded up to [`ALIGNMENT`]. `None`: all that is left. Only the last one may have `None`.
    pub bytes: Option<u64>,
}

/// Writes a partition table to a disk, which is as long as it already is. Returns the bytes of each partition.
pub fn write<T>(disk: &mut T, block: BlockSize, guid: Guid, partitions: &[Partition<'_>]) -> Result<Vec<Range<u64>>>
where
    T: Read + Write + Seek,
{
    let blocks = disk.seek(SeekFrom::End(0))? / block.to_u64();
    let array_blocks = u64::from(ENTRIES * ENTRY_SIZE).div_ceil(block.to_u64());
    // Behind the last usable block are the second array and the second header.
    let (first, last) = (ARRAY + array_blocks, blocks.saturating_sub(array_blocks + 2));
    let ranges = place(partitions, block, last)?;

    let layout = |start| GptPartitionEntryArrayLayout {
        start_lba: Lba(start),
        entry_size: GptPartitionEntrySize::default(),
        num_entries: ENTRIES,
    };
    let mut bytes = vec![0; usize::try_from(array_blocks * block.to_u64())?];
    let mut array = GptPartitionEntryArray::new(layout(ARRAY), block, &mut bytes)
        .map_err(|error| anyhow!("the partitions' entries: {error}"))?;
    for (index, (partition, range)) in (0..ENTRIES).zip(partitions.iter().zip(&ranges)) {
        let entry = array.get_partition_entry_mut(index).context("more partitions than entries")?;
        *entry = GptPartitionEntry {
            partition_type_guid: partition.kind,
            unique_partition_guid: partition.guid,
            starting_lba: LbaLe::from_u64(range.start / block.to_u64()),
            ending_lba: LbaLe::from_u64(range.end / block.to_u64() - 1),
            attributes: Default::default(),
            name: partition.name.parse().map_err(|error| anyhow!("partition {:?}: {error}", partition.name))?,
        };
    }
    let header = |own: u64, other: u64, array_start: u64, sum: Crc32| {
        let mut header = GptHeader {
            my_lba: LbaLe::from_u64(own),
            alternate_lba: LbaLe::from_u64(other),
            first_usable_lba: LbaLe::from_u64(first),
            last_usable_lba: LbaLe::from_u64(last),
            disk_guid: guid,
            partition_entry_lba: LbaLe::from_u64(array_start),
            number_of_partition_entries: U32Le::from_u32(ENTRIES),
            size_of_partition_entry: U32Le::from_u32(ENTRY_SIZE),
            partition_entry_array_crc32: sum,
            ..Default::default()
        };
        header.update_header_crc32();
        header
    };
    let sum = array.calculate_crc32();
    let (primary, secondary) = (header(1, blocks - 1, ARRAY, sum), header(blocks - 1, 1, last + 1, sum));

    let mut buffer = vec![0; usize::try_from(block.to_u64())?];
    let mut disk = Disk::new(BlockIoAdapter::new(disk, block)).context("the partition table")?;
    disk.write_protective_mbr(&mut buffer).context("the protective MBR")?;
    disk.write_primary_gpt_header(&primary, &mut buffer).context("the first header")?;
    disk.write_secondary_gpt_header(&secondary, &mut buffer).context("the second header")?;
    disk.write_gpt_partition_entry_array(&array).context("the first entry array")?;
    array.set_start_lba(Lba(last + 1));
    disk.write_gpt_partition_entry_array(&array).context("the second entry array")?;
    disk.flush().context("the partition table")?;
    Ok(ranges)
}

/// Reads where the partitions of a disk are. Returns the bytes of each. Only the first header is read.
pub fn read<T>(disk: &mut T, block: BlockSize) -> Result<Vec<Range<u64>>>
where
    T: Read + Write + Seek,
{
    let mut buffer = vec![0; usize::try_from(block.to_u64())?];
    let mut disk = Disk::new(BlockIoAdapter::new(disk, block)).context("the partition table")?;
    let header = disk.read_primary_gpt_header(&mut buffer).context("the first header")?;
    ensure!(header.is_signature_valid(), "there is no GUID partition table for blocks of {} bytes", block.to_u64());
    let layout = header.get_partition_entry_array_layout().map_err(|error| anyhow!("the first header: {error}"))?;
    let mut ranges = Vec::new();
    for entry in disk.gpt_partition_entry_array_iter(layout, &mut buffer).context("the first entry array")? {
        let entry = entry.context("the first entry array")?;
        if entry.is_used() {
            let range = entry.lba_range().and_then(|range| range.to_byte_range(block));
            let range = range.context("a partition that ends before it starts")?;
            ranges.push(*range.start()..*range.end() + 1);
        }
    }
    Ok(ranges)
}

/// Places partitions one after another. `last`: the last block that may be used. Returns the bytes of each.
fn place(partitions: &[Partition<'_>], block: BlockSize, last: u64) -> Result<Vec<Range<u64>>> {
    let limit = last.saturating_add(1).saturating_mul(block.to_u64()) / ALIGNMENT * ALIGNMENT;
    let mut start = ALIGNMENT;
    let mut ranges = Vec::new();
    for partition in partitions {
        let end = match partition.bytes {
            Some(bytes) => bytes.checked_next_multiple_of(ALIGNMENT).and_then(|bytes| start.checked_add(bytes)),
            None => Some(limit),
        };
        let end = end.filter(|end| (start + ALIGNMENT..=limit).contains(end));
        let end = end.with_context(|| {
            format!("partition {:?} does not fit: the disk has room up to byte {limit}; make it larger", partition.name)
        })?;
        ranges.push(start..end);
        start = end;
    }
    ensure!(!ranges.is_empty(), "a disk without partitions");
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const SIZE: usize = 32 << 20;

    fn guid(n: u8) -> Guid {
        Guid::from_random_bytes([n; 16])
    }

    fn two() -> [Partition<'static>; 2] {
        [
            Partition { name: "esp", kind: GptPartitionType::EFI_SYSTEM, guid: guid(1), bytes: Some(5 << 20) },
            Partition { name: "root", kind: GptPartitionType::BASIC_DATA, guid: guid(2), bytes: None },
        ]
    }

    fn written(block: u32) -> (Vec<u8>, Vec<Range<u64>>) {
        let mut disk = Cursor::new(vec![0; SIZE]);
        let ranges = write(&mut disk, BlockSize::new(block).unwrap(), guid(3), &two()).unwrap();
        (disk.into_inner(), ranges)
    }

    #[test]
    fn both_headers_and_both_arrays_are_valid_for_both_block_sizes() {
        for block in [512, 4096] {
            let (bytes, ranges) = written(block);
            assert_eq!(ranges, [1 << 20..6 << 20, 6 << 20..31 << 20]);
            let block = BlockSize::new(block).unwrap();
            assert_eq!(read(&mut Cursor::new(bytes.clone()), block).unwrap(), ranges);
            let mut bytes = Cursor::new(bytes);
            let mut disk = Disk::new(BlockIoAdapter::new(&mut bytes, block)).unwrap();
            let mut buffer = vec![0; block.to_usize().unwrap()];
            let first = disk.read_primary_gpt_header(&mut buffer).unwrap();
            let second = disk.read_secondary_gpt_header(&mut buffer).unwrap();
            for (header, own) in [(first, 1), (second, SIZE as u64 / block.to_u64() - 1)] {
                assert!(header.is_signature_valid());
                assert_eq!(header.my_lba.to_u64(), own);
                assert_eq!({ header.header_crc32 }, header.calculate_header_crc32());
                let layout = header.get_partition_entry_array_layout().unwrap();
                let mut array = vec![0; layout.num_bytes_rounded_to_block_as_usize(block).unwrap()];
                let array = disk.read_gpt_partition_entry_array(layout, &mut array).unwrap();
                assert_eq!({ header.partition_entry_array_crc32 }, array.calculate_crc32());
                for (n, range) in (0..).zip(&ranges) {
                    let entry = array.get_partition_entry(n).unwrap();
                    let found = entry.lba_range().unwrap().to_byte_range(block).unwrap();
                    assert_eq!((*found.start(), *found.end() + 1), (range.start, range.end));
                    assert!(header.first_usable_lba.to_u64() * block.to_u64() <= range.start);
                    assert!((header.last_usable_lba.to_u64() + 1) * block.to_u64() >= range.end);
                }
                assert!(!array.get_partition_entry(2).unwrap().is_used());
            }
        }
    }

    #[test]
    fn the_protective_mbr_covers_the_disk() {
        let (bytes, _) = written(512);
        assert_eq!(bytes[510..512], [0x55, 0xaa]);
        assert_eq!(bytes[446 + 4], 0xee);
        assert_eq!(bytes[446 + 8..446 + 12], 1_u32.to_le_bytes());
        assert_eq!(bytes[446 + 12..446 + 16], (SIZE as u32 / 512 - 1).to_le_bytes());
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        assert!(written(512).0 == written(512).0);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        for bytes in [u64::MAX, SIZE as u64] {
            let [mut first, last] = two();
            first.bytes = Some(bytes);
            let mut disk = Cursor::new(vec![0; SIZE]);
            let error = write(&mut disk, BlockSize::BS_512, guid(3), &[first, last]).unwrap_err();
            assert!(error.to_string().contains("\"esp\" does not fit"), "{error}");
        }
        let empty = write(&mut Cursor::new(Vec::new()), BlockSize::BS_512, guid(3), &two());
        assert!(empty.unwrap_err().to_string().contains("does not fit"));
    }
}
