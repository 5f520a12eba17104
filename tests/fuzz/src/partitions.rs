//! GUID partition tables, from bytes that decide how a good one is damaged. Whatever they say: nothing outside the disk is
//! read (the image asserts it), and what is found is within the disk, apart from each other, and chosen by its own name.

use crate::gpt_image::both;
use crate::input::Input;
use crate::planted::planted;

/// Most changes of a table.
const MOST_CHANGES: u64 = 16;

/// Runs one input.
///
/// # Panics
/// A table was read wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let [small, large] = both();
    let mut image = if input.flag() { small } else { large };
    let last = image.last();
    for _ in 0..input.within(0, MOST_CHANGES) {
        let any = input.within(0, last + 1);
        let block = [0, 1, 2, last - 1, last, any][input.within(0, 6) as usize];
        let end = if input.flag() { 128 } else { image.block as u64 - 8 };
        let at = input.within(0, end) as usize;
        let wide = input.wide();
        let value = (wide >> input.within(0, 64)).to_le_bytes();
        let bytes = input.within(1, 9) as usize;
        // Half of the changed headers get right checksums.
        if (block == 1 || block == last) && input.flag() {
            image.change(block, |header| header[at..at + bytes].copy_from_slice(&value[..bytes]));
        } else {
            image.at(block)[at..at + bytes].copy_from_slice(&value[..bytes]);
        }
        if input.within(0, 8) == 0 {
            image.bad.push(block);
        }
    }
    if input.within(0, 4) == 0 {
        let blocks = input.within(1, last + 1) as usize;
        image.bytes.truncate(blocks * image.block);
    }
    let table = match image.read() {
        Ok(table) => table,
        Err(why) => return assert!(!why.to_string().is_empty(), "a sentence says why"),
    };
    assert!(table.damage.as_ref().is_none_or(|damage| !damage.to_string().is_empty()));
    assert!(table.find("no such label").is_err_and(|there| !there.is_empty()), "no label of these images");
    let blocks = if planted() { 1 } else { image.shape().blocks };
    for partition in &table.partitions {
        let end = partition.first + partition.blocks;
        assert!(partition.blocks > 0 && partition.first > 1 && end < blocks, "{partition:?}");
        let apart = |other: &gpt::Partition| end <= other.first || other.first + other.blocks <= partition.first;
        assert!(table.partitions.iter().all(|other| other.number == partition.number || apart(other)), "{table:?}");
        let named = table.find(&table.name(partition));
        let twins = table.partitions.iter().filter(|other| other.guid == partition.guid).count();
        assert!(twins > 1 || named.is_ok_and(|found| found.number == partition.number) || is_label(&table, partition));
    }
}

/// Whether a partition's GUID is also a label of another one. Then no name means it alone.
fn is_label(table: &gpt::Table, partition: &gpt::Partition) -> bool {
    table.partitions.iter().any(|other| gpt::Guid::try_parse(&other.label).ok() == Some(partition.guid))
}

crate::planted::tests!(any_table_is_read_within_the_disk_or_refused, 512, 0..200);
