//! Reads a saved trace (`trace::stream`) from any bytes.
//!
//! What is missing is found from the numbers of records: a core's chunks continue each other. A gap is a loss, whether the
//! ring was overwritten before it was read, or a chunk was damaged or dropped on its way.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use sidecore_pcapng::names::missing;
use trace::Kind;
use trace::stream::{self, Block, Captures, Chunk, Header, KernelAddresses, Scope};

use crate::clock::Clock;
use crate::model::{Capture, Damage, Event, Loss, Names, Trace};

/// Most scopes of exits that are kept of a trace. A machine changes them when an operator does.
const MOST_SCOPES: usize = 64;

/// Reads the trace in a file.
///
/// # Errors
/// The file cannot be read, or nothing in it is a trace.
pub fn file(path: &Path) -> Result<Trace> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    match bytes_of(&bytes) {
        Some(trace) => Ok(trace),
        None if bytes.is_empty() => bail!("{} is empty", path.display()),
        None => bail!("{} is no trace of sidecore, or of a version that this program does not know", path.display()),
    }
}

/// Reads a trace. None: there is no sound block in these bytes.
#[must_use]
pub fn bytes_of(bytes: &[u8]) -> Option<Trace> {
    let mut reader = Reader::default();
    let mut sound = false;
    for block in stream::blocks(bytes) {
        match block {
            Ok(Block::Header(header)) => {
                sound = true;
                reader.header(&header);
            }
            Ok(Block::Chunk(chunk)) => {
                sound = true;
                reader.chunk(&chunk);
            }
            Ok(Block::Captures(captures)) => {
                sound = true;
                reader.captures(&captures);
            }
            Ok(Block::Kernel(kernel)) => {
                sound = true;
                reader.kernels.push(kernel);
            }
            Ok(Block::Scope(scope)) => {
                sound = true;
                reader.scope = scope;
            }
            Ok(Block::Unknown { .. }) => {
                reader.damage.unknown_blocks = reader.damage.unknown_blocks.saturating_add(1);
            }
            Err(skipped) => reader.damage.bytes = reader.damage.bytes.saturating_add(skipped as u64),
        }
    }
    sound.then(|| reader.finish())
}

/// What was read so far.
#[derive(Default)]
struct Reader {
    clock: Option<Clock>,
    names: Names,
    events: Vec<Event>,
    losses: Vec<Loss>,
    damage: Damage,
    kernels: Vec<KernelAddresses>,
    /// Of what follows, and of the chunks with exits before.
    scope: Scope,
    scopes: Vec<Scope>,
    /// The number that each core's next record has.
    next: BTreeMap<u32, u64>,
    /// For each core, the first of `losses` after which there was no record of it.
    open: BTreeMap<u32, usize>,
    captures: Vec<Capture>,
    captures_lost: u64,
    /// The number that each core's next captured frame has.
    next_capture: BTreeMap<u32, u64>,
}

impl Reader {
    /// Takes clock and names. A later header has more names, or the same.
    fn header(&mut self, header: &Header<'_>) {
        self.clock = Some(self.names.take(header));
    }

    fn chunk(&mut self, chunk: &Chunk<'_>) {
        let missing = missing(self.next.get(&chunk.core), chunk.first, chunk.lost);
        if missing > 0 {
            self.open.entry(chunk.core).or_insert(self.losses.len());
            let number = chunk.first.saturating_sub(missing);
            self.losses.push(Loss { core: chunk.core, number, records: missing, before: None });
        }
        if let (Some(first), Some(from)) = (chunk.records().next(), self.open.get(&chunk.core).copied()) {
            for loss in self.losses.iter_mut().skip(from).filter(|loss| loss.core == chunk.core) {
                loss.before = loss.before.or(Some(first.tsc));
            }
            self.open.remove(&chunk.core);
        }
        let mut number = chunk.first;
        let has_exits = chunk.records().any(|record| record.known_kind() == Some(Kind::Exit));
        if has_exits && !self.scopes.contains(&self.scope) && self.scopes.len() < MOST_SCOPES {
            self.scopes.push(self.scope);
        }
        for record in chunk.records() {
            self.events.push(Event { core: chunk.core, number, record });
            number = number.saturating_add(1);
        }
        self.next.insert(chunk.core, number);
    }

    fn captures(&mut self, captures: &Captures<'_>) {
        let missing = missing(self.next_capture.get(&captures.core), captures.first, captures.lost);
        self.captures_lost = self.captures_lost.saturating_add(missing);
        let mut number = captures.first;
        for frame in captures.frames() {
            self.captures.push(Capture { core: captures.core, number, frame });
            number = number.saturating_add(1);
        }
        self.next_capture.insert(captures.core, number);
    }

    fn finish(self) -> Trace {
        let clock = self.clock.unwrap_or_else(|| Clock::new(0, None));
        let trace = Trace::new(clock, self.names, self.events, self.losses, self.damage);
        Trace { kernels: self.kernels, scopes: self.scopes, ..trace.with_captures(self.captures, self.captures_lost) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::Record;
    use trace::stream::{ChunkWriter, HeaderWriter, NOTHING, Table};

    use super::*;

    fn header(names: &[(Table, u32, u32, &str)]) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let clock = stream::Clock { tsc_khz: 2_000_000, wall: 1_700_000_000, tsc: 4_000_000_000 };
        let mut writer = HeaderWriter::new(&mut buffer, clock).unwrap();
        for &(table, number, belongs_to, name) in names {
            writer.name(table, number, belongs_to, name).unwrap();
        }
        writer.finish().to_vec()
    }

    fn chunk(core: u32, first: u64, lost: u64, count: u64) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let mut writer = ChunkWriter::new(&mut buffer, core, first, lost).unwrap();
        (first..first + count)
            .for_each(|number| writer.push(Record::new(Kind::Exit, 1000_u64.wrapping_add(number))).unwrap());
        writer.finish().to_vec()
    }

    fn losses(trace: &Trace) -> Vec<(u32, u64, u64, Option<u64>)> {
        trace.losses.iter().map(|loss| (loss.core, loss.number, loss.records, loss.before)).collect()
    }

    #[test]
    fn names_and_clock_are_those_of_the_header() {
        let names = [
            (Table::Core, 1, 7, "engine"),
            (Table::Core, 2, 0, "guest"),
            (Table::Guest, 0, NOTHING, "a\x1b[31m"),
            (Table::Device, 7 << 16 | 3, 0, "net0"),
            (Table::Reason, 0, NOTHING, "cpuid"),
            (Table::Kind, 99, NOTHING, "later"),
            (Table::State, 1, NOTHING, "running"),
            (Table::Cause, 2, NOTHING, "no-buffer"),
            (Table::Stop, 4, NOTHING, "killed"),
        ];
        let trace = bytes_of(&[header(&names), chunk(1, 0, 0, 1)].concat()).unwrap();
        assert_eq!(trace.names.core(1), "core 1 (engine)");
        assert_eq!(trace.names.guest(0), "a?[31m", "nothing for a terminal to interpret");
        assert_eq!(trace.names.device(1, 3), "a?[31m net0", "the engine of core 1 is number 7");
        assert_eq!((trace.names.reason(0), trace.names.kind(99)), ("cpuid".into(), "later".into()));
        assert_eq!((trace.names.state(1), trace.names.cause(2)), ("running".into(), "no-buffer".into()));
        let stops = [0, 4, 5, 1 << 40].map(|number| trace.names.stop(number));
        assert_eq!(stops, [None, Some("killed".into()), Some("stop-5".into()), Some("stop-1099511627776".into())]);
        // 4,000,000,000 ticks at 2 GHz are 2 s.
        assert_eq!(trace.clock.wall_at_zero(), Some(1_699_999_998_000_000_000));
    }

    #[test]
    fn a_gap_in_the_numbers_is_a_loss_whoever_lost_them() {
        let told = [header(&[]), chunk(1, 5, 5, 2), chunk(2, 0, 0, 3), chunk(1, 10, 3, 1), chunk(2, 3, 0, 1)].concat();
        let trace = bytes_of(&told).unwrap();
        assert_eq!(losses(&trace), [(1, 0, 5, Some(1005)), (1, 7, 3, Some(1010))]);
        assert_eq!((trace.lost(), trace.events.len()), (8, 7));
        // The second chunk of core 2 never arrives, and nobody says so.
        let dropped = [chunk(2, 0, 0, 3), chunk(2, 7, 0, 1)].concat();
        assert_eq!(losses(&bytes_of(&dropped).unwrap()), [(2, 3, 4, Some(1007))]);
    }

    #[test]
    fn a_loss_with_nothing_after_it_is_still_counted() {
        let trace = bytes_of(&[chunk(1, 0, 0, 1), chunk(1, 9, 8, 0)].concat()).unwrap();
        assert_eq!(losses(&trace), [(1, 1, 8, None)]);
        let later = bytes_of(&[chunk(1, 9, 8, 0), chunk(1, 9, 0, 1)].concat()).unwrap();
        assert_eq!(losses(&later), [(1, 1, 8, Some(1009))], "its record comes in a later chunk");
    }

    #[test]
    fn numbers_that_begin_again_are_no_loss() {
        let trace = bytes_of(&[chunk(1, 100, 0, 2), chunk(1, 0, 0, 2)].concat()).unwrap();
        assert_eq!((losses(&trace), trace.events.len()), (vec![], 4));
    }

    #[test]
    fn a_damaged_chunk_is_skipped_and_counted_as_lost() {
        let mut middle = chunk(1, 2, 0, 2);
        middle[60] ^= 1;
        let trace = bytes_of(&[chunk(1, 0, 0, 2), middle.clone(), chunk(1, 4, 0, 1)].concat()).unwrap();
        assert_eq!(losses(&trace), [(1, 2, 2, Some(1004))]);
        assert_eq!(trace.damage.bytes, middle.len() as u64);
    }

    #[test]
    fn a_scope_is_of_the_exits_after_it() {
        let scope = |exits_one_of, rips| Scope { exits_one_of, rips }.write(&mut [0; 64]).unwrap().to_vec();
        let none = bytes_of(&[header(&[]), chunk(1, 0, 0, 2)].concat()).unwrap();
        assert_eq!(
            (none.scopes.as_slice(), none.exits_one_of(), none.has_rips()),
            (&[Scope::default()][..], Some(1), true)
        );
        let one = [header(&[]), scope(16, true), chunk(1, 0, 0, 2), chunk(2, 0, 0, 1)].concat();
        let one = bytes_of(&one).unwrap();
        assert_eq!((one.exits_one_of(), one.has_rips(), one.damage), (Some(16), true, Damage::default()));
        let two = [header(&[]), scope(16, true), chunk(1, 0, 0, 2), scope(4, false), chunk(1, 2, 0, 1)].concat();
        let two = bytes_of(&two).unwrap();
        assert_eq!((two.scopes.len(), two.exits_one_of(), two.has_rips()), (2, None, false));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert_eq!(bytes_of(b""), None);
        assert_eq!(bytes_of(b"Linux version 6.12"), None);
        let file_of = |bytes: &[u8]| {
            let place = tempfile::NamedTempFile::new().unwrap();
            fs::write(place.path(), bytes).unwrap();
            file(place.path()).unwrap_err().to_string()
        };
        assert!(file_of(b"").ends_with("is empty"));
        assert!(file_of(b"{}").contains("is no trace of sidecore"));
    }

    proptest! {
        #[test]
        fn any_chunks_are_read_and_every_number_is_accounted_for(
            parts in proptest::collection::vec((0_u32..3, 0_u64..20, 0_u64..5), 0..20)
        ) {
            // Chunks of three cores with gaps of any size between them, without a word about losses.
            let (mut bytes, mut next, mut missing, mut count) = (Vec::new(), [0_u64; 3], 0, 0);
            let mut begun = [false; 3];
            for (core, gap, records) in parts {
                let at = core as usize;
                let gap = if begun[at] { gap } else { 0 };
                begun[at] = true;
                bytes.extend(chunk(core, next[at] + gap, 0, records));
                next[at] += gap + records;
                missing += gap;
                count += records;
            }
            if let Some(trace) = bytes_of(&bytes) {
                prop_assert_eq!((trace.lost(), trace.events.len() as u64), (missing, count));
            }
        }

        #[test]
        fn any_bytes_are_read_to_their_end(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), keep: bool) {
            if keep {
                bytes.splice(0..0, chunk(u32::MAX, u64::MAX - 3, u64::MAX, 3));
            }
            prop_assert_eq!(bytes_of(&bytes).is_some(), keep);
        }
    }
}
