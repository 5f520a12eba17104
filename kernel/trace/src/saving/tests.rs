//! Tests of a saving against rings that are written meanwhile and readers of any speed.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::ring::{Cursor, Ring, Slot};
use crate::stream::{Block, Clock, HeaderWriter, NOTHING, Table, blocks, collect};
use crate::{Kind, Record};

const LIMITS: Limits = Limits { blocks: 2, quiet: 3, stuck: Some(10) };
/// Bytes of a block.
const BLOCK: usize = 512;

/// The rings of some cores.
struct Cores(Vec<(Ring<Box<[Slot]>>, Cursor)>);

impl Cores {
    fn new(count: usize, slots: usize) -> Self {
        let ring = || Ring::new((0..slots).map(|_| Slot::new()).collect()).unwrap();
        Self((0..count).map(|_| (ring(), Cursor::new())).collect())
    }

    fn write(&self, core: usize, count: u64) {
        let ring = &self.0[core].0;
        (0..count).for_each(|_| ring.write(Record::new(Kind::Exit, ring.written())));
    }
}

impl Rings for Cores {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn collect(&mut self, number: usize, buffer: &mut [u8]) -> usize {
        let (ring, cursor) = &mut self.0[number];
        collect(ring, cursor, number as u32, buffer).map_or(0, <[u8]>::len)
    }
}

/// A port: bytes that wait in its ring, and those that its reader has taken.
struct Port {
    waiting: VecDeque<u8>,
    taken: Vec<u8>,
    capacity: usize,
}

impl Port {
    fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::new(), taken: Vec::new(), capacity }
    }

    fn read(&mut self, most: usize) {
        let len = most.min(self.waiting.len());
        self.taken.extend(self.waiting.drain(..len));
    }
}

impl Sink for Port {
    fn has_room(&self) -> bool {
        self.capacity - self.waiting.len() >= BLOCK
    }
    fn send(&mut self, block: &[u8]) {
        assert!(block.len() <= BLOCK && self.has_room(), "a block is sent when there is room for it");
        self.waiting.extend(block);
    }
    fn is_drained(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn header() -> Vec<Vec<u8>> {
    let mut buffer = [0; BLOCK];
    let mut header = HeaderWriter::new(&mut buffer, Clock { tsc_khz: 1, wall: 2, tsc: 3 }).unwrap();
    header.name(Table::Guest, 0, NOTHING, "g1").unwrap();
    vec![header.finish().to_vec()]
}

fn tick(saving: &mut Saving, is_off: bool, cores: &mut Cores, port: &mut Port) -> Progress {
    saving.tick(is_off, &header(), cores, port, &mut [0; BLOCK])
}

/// Records and losses by core. The first block must be the header, nothing may be damaged, and numbers must go on.
fn read(bytes: &[u8], cores: usize) -> Vec<(u64, u64)> {
    let mut counts = vec![(0, 0); cores];
    for (at, block) in blocks(bytes).enumerate() {
        match block.unwrap() {
            Block::Header(header) => assert!(at == 0 && header.names().count() == 1),
            Block::Chunk(chunk) => {
                assert!(at > 0, "the header is first");
                let (records, lost) = &mut counts[chunk.core as usize];
                *lost += chunk.lost;
                assert_eq!(chunk.first, *records + *lost, "no record is missing without being counted");
                assert!(chunk.records().map(|record| record.tsc).eq(chunk.first..chunk.first + chunk.count() as u64));
                *records += chunk.count() as u64;
            }
            Block::Captures(_) | Block::Kernel(_) | Block::Scope(_) | Block::Unknown { .. } => panic!("another block"),
        }
    }
    counts
}

#[test]
fn it_sends_at_most_its_blocks_in_a_tick_and_takes_the_cores_in_turn() {
    let (mut saving, mut cores, mut port) = (Saving::new(LIMITS), Cores::new(2, 256), Port::new(100 * BLOCK));
    cores.write(0, 100);
    cores.write(1, 1);
    for _ in 0..2 {
        let before = port.waiting.len();
        assert_eq!(tick(&mut saving, false, &mut cores, &mut port), Progress::Going);
        let sent = port.waiting.len() - before;
        assert!(sent > 0 && sent <= 2 * BLOCK);
    }
    port.read(usize::MAX);
    // The header and one chunk of core 0; then the chunk of core 1, which has not waited for all of core 0.
    assert_eq!(read(&port.taken, 2)[1], (1, 0));
    assert!(read(&port.taken, 2)[0].0 < 100);
}

#[test]
fn while_the_trace_is_on_it_never_ends() {
    let (mut saving, mut cores, mut port) = (Saving::new(LIMITS), Cores::new(1, 8), Port::new(BLOCK));
    for _ in 0..1000 {
        assert_eq!(tick(&mut saving, false, &mut cores, &mut port), Progress::Going);
    }
    port.read(usize::MAX);
    cores.write(0, 1);
    assert_eq!(tick(&mut saving, false, &mut cores, &mut port), Progress::Going);
    port.read(usize::MAX);
    assert_eq!(read(&port.taken, 1), [(1, 0)]);
}

#[test]
fn a_late_record_is_sent_and_puts_the_end_off() {
    let (mut saving, mut cores, mut port) = (Saving::new(LIMITS), Cores::new(1, 8), Port::new(BLOCK));
    let mut step = |cores: &mut Cores| {
        let progress = tick(&mut saving, true, cores, &mut port);
        port.read(usize::MAX);
        (progress, read(&port.taken, 1)[0])
    };
    assert_eq!([step(&mut cores), step(&mut cores), step(&mut cores)], [(Progress::Going, (0, 0)); 3]);
    cores.write(0, 1);
    assert_eq!([step(&mut cores), step(&mut cores), step(&mut cores)], [(Progress::Going, (1, 0)); 3]);
    assert_eq!(step(&mut cores), (Progress::Ended, (1, 0)));
}

#[test]
fn it_ends_only_when_the_reader_has_taken_everything() {
    let (mut saving, mut cores, mut port) = (Saving::new(LIMITS), Cores::new(1, 8), Port::new(4 * BLOCK));
    cores.write(0, 3);
    for _ in 0..9 {
        assert_eq!(tick(&mut saving, true, &mut cores, &mut port), Progress::Going);
    }
    port.read(usize::MAX);
    assert_eq!(read(&port.taken, 1), [(3, 0)]);
    assert_eq!([(); 2].map(|()| tick(&mut saving, true, &mut cores, &mut port)), [Progress::Going; 2]);
    assert_eq!(tick(&mut saving, true, &mut cores, &mut port), Progress::Ended);
}

#[test]
fn a_reader_that_stops_is_given_up_after_the_trace_is_off() {
    for stuck in [Some(10), None] {
        let mut saving = Saving::new(Limits { stuck, ..LIMITS });
        let (mut cores, mut port) = (Cores::new(1, 8), Port::new(BLOCK));
        cores.write(0, 3);
        for _ in 0..100 {
            assert_eq!(tick(&mut saving, false, &mut cores, &mut port), Progress::Going);
        }
        let ticks = (1..=100).find(|_| tick(&mut saving, true, &mut cores, &mut port) != Progress::Going);
        assert_eq!(ticks, stuck);
    }
}

proptest! {
    #[test]
    fn records_and_losses_are_all_that_was_written(
        steps in prop::collection::vec((0_usize..3, 0_u64..40, 0_usize..2000), 1..200)
    ) {
        // The reader needs 16 ticks for what the port holds.
        let mut saving = Saving::new(Limits { stuck: Some(20), ..LIMITS });
        let (mut cores, mut port) = (Cores::new(3, 16), Port::new(3 * BLOCK));
        for (core, count, taken) in steps {
            cores.write(core, count);
            prop_assert_eq!(tick(&mut saving, false, &mut cores, &mut port), Progress::Going);
            port.read(taken);
        }
        let end = (0..1000).find_map(|_| {
            port.read(100);
            let progress = tick(&mut saving, true, &mut cores, &mut port);
            (progress != Progress::Going).then_some(progress)
        });
        prop_assert_eq!(end, Some(Progress::Ended));
        let found = read(&port.taken, 3);
        for (core, (records, lost)) in found.into_iter().enumerate() {
            prop_assert_eq!(records + lost, cores.0[core].0.written());
        }
    }
}
