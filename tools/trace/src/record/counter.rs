//! Counts the records and losses of a trace while it arrives.

use std::collections::BTreeMap;

use sidecore_pcapng::names::missing;
use trace::stream::{self, Block, Step};

/// Counts blocks that are complete. It keeps at most one block's bytes.
#[derive(Debug, Default)]
pub struct Counter {
    /// Bytes of a block that is not complete.
    begun: Vec<u8>,
    /// Number of each core's next record.
    next: BTreeMap<u32, u64>,
    /// Number of each core's next captured frame.
    next_capture: BTreeMap<u32, u64>,
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
                    let missing = missing(self.next.get(&chunk.core), chunk.first, chunk.lost);
                    let count = chunk.count() as u64;
                    self.next.insert(chunk.core, chunk.first.saturating_add(count));
                    self.records = self.records.saturating_add(count);
                    self.lost = self.lost.saturating_add(missing);
                    len
                }
                Step::Block(Block::Captures(captures), len) => {
                    let missing = missing(self.next_capture.get(&captures.core), captures.first, captures.lost);
                    let count = captures.count() as u64;
                    self.next_capture.insert(captures.core, captures.first.saturating_add(count));
                    self.records = self.records.saturating_add(count);
                    self.lost = self.lost.saturating_add(missing);
                    len
                }
                Step::Block(_, len) | Step::Damaged(len) => len,
                Step::Incomplete => break,
            };
            used = used.saturating_add(len);
        }
        self.begun.drain(..used.min(self.begun.len()));
    }

    /// Records and captured frames that have arrived.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records and captured frames that are missing: lost by the machine or on the way.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use trace::capture::Way;
    use trace::stream::{BLOCK_BYTES, CapturesWriter, ChunkWriter, MAX_CONTENT};
    use trace::{Captured, Kind, Record};

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
    fn captured_frames_count_as_records_with_numbers_of_their_own() {
        let captures = |core, first, lost| {
            let mut buffer = [0; 4096];
            let mut writer = CapturesWriter::new(&mut buffer, core, first, lost).unwrap();
            writer.push(&Captured::new(1, 2, Way::In, 60)).unwrap();
            writer.finish().to_vec()
        };
        let all = [chunk(1, 4, 4, 3), captures(1, 9, 9), captures(1, 12, 0), chunk(1, 7, 0, 1)].concat();
        let mut counter = Counter::default();
        counter.take(&all);
        assert_eq!((counter.records(), counter.lost()), (6, 4 + 9 + 2));
        let read = crate::read::bytes_of(&all).unwrap();
        assert_eq!((read.captures.len(), read.captures_lost, read.lost()), (2, 11, 4));
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
