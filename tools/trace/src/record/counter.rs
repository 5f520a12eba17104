//! Counts the records and losses of a trace while it arrives.

use std::collections::BTreeMap;

use trace::stream::{self, Block, Step};

/// Counts blocks that are complete. It keeps at most one block's bytes.
#[derive(Debug, Default)]
pub struct Counter {
    /// Bytes of a block that is not complete.
    begun: Vec<u8>,
    /// Number of each core's next record.
    next: BTreeMap<u32, u64>,
    records: u64,
    lost: u64,
}

impl Counter {
    /// Takes the next bytes of the trace.
    pub fn take(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        let mut used = 0_usize;
        loop {
            let rest = self.begun.get(used..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let len = match stream::step(rest) {
                Step::Block(Block::Chunk(chunk), len) => {
                    let lost = match self.next.get(&chunk.core) {
                        Some(&next) if chunk.first >= next => chunk.first.saturating_sub(next),
                        _ => chunk.lost,
                    };
                    let count = chunk.count() as u64;
                    self.records = self.records.saturating_add(count);
                    self.lost = self.lost.saturating_add(lost);
                    self.next.insert(chunk.core, chunk.first.saturating_add(count));
                    len
                }
                Step::Block(_, len) | Step::Damaged(len) => len,
                Step::Incomplete => break,
            };
            used = used.saturating_add(len);
        }
        self.begun.drain(..used.min(self.begun.len()));
    }

    /// Records that have arrived.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records that are missing: lost by the machine or on the way.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use trace::stream::{BLOCK_BYTES, ChunkWriter, MAX_CONTENT};
    use trace::{Kind, Record};

    use super::*;

    fn chunk(core: u32, first: u64, lost: u64, count: u64) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let mut writer = ChunkWriter::new(&mut buffer, core, first, lost).unwrap();
        (0..count).for_each(|_| writer.push(Record::new(Kind::Turn, 1)).unwrap());
        writer.finish().to_vec()
    }

    #[test]
    fn it_counts_what_a_reader_of_the_whole_trace_finds() {
        let all =
            [chunk(1, 4, 4, 3), b"noise".to_vec(), chunk(1, 9, 0, 2), chunk(2, 0, 0, 1), chunk(1, 11, 0, 0)].concat();
        for size in [1, 7, 64, all.len()] {
            let mut counter = Counter::default();
            all.chunks(size).for_each(|piece| counter.take(piece));
            let read = crate::read::bytes_of(&all).unwrap();
            assert_eq!(
                (counter.records(), counter.lost()),
                (read.events.len() as u64, read.lost()),
                "pieces of {size}"
            );
            assert_eq!((counter.records(), counter.lost()), (6, 6));
        }
    }

    #[test]
    fn bytes_that_are_no_trace_are_not_kept() {
        let mut counter = Counter::default();
        for _ in 0..300 {
            counter.take(&[0x93; 1000]);
            assert!(counter.begun.len() <= BLOCK_BYTES + MAX_CONTENT + 1000);
        }
        assert_eq!(counter.records(), 0);
    }
}
