//! Blocks of 512 bytes on a storage of 4,096, against plain sectors. The storage beneath completes in any order.

use std::collections::BTreeMap;

use memory::GuestMemory;
use memory::guest::testing::memory;
use proptest::prelude::*;
use virtio::chain::{Segment, Span};

use super::support::Slow;
use crate::emulate::{BOUNCE_BYTES, Emulate, Emulated, EmulationCounters};
use crate::part::{Part, Parts};
use crate::storage::{Operation, Request, Status, Storage, Submitted, Tag};

/// Blocks beneath, and sectors above.
const BLOCKS: u64 = 24;
const SECTORS: u64 = BLOCKS * 8;
/// Bytes of a request's buffers.
const ROOM: u64 = 64 << 10;
/// Requests at a time.
const TAGS: u16 = 24;

/// A device with emulated blocks, its guest's memory, and what its sectors should hold.
struct Stand {
    emulate: Emulate<Slow>,
    counters: &'static EmulationCounters,
    guest: GuestMemory,
    /// One value a sector.
    sectors: Vec<u8>,
    in_flight: BTreeMap<u16, InFlight>,
    next: u8,
}

/// A request in flight.
struct InFlight {
    operation: Operation,
    first: u64,
    /// For each sector of it, what a read may find. For a change: what the sector held before.
    values: Vec<Vec<u8>>,
    segments: Vec<Segment>,
}

impl Stand {
    fn new() -> Self {
        let emulate = Emulate::new(Slow::new(4096, BLOCKS), memory(0, BOUNCE_BYTES as usize));
        let guest = memory(0, (u64::from(TAGS) * ROOM) as usize);
        let (sectors, in_flight) = (vec![0; SECTORS as usize], BTreeMap::new());
        Self { emulate, counters: Box::leak(Box::default()), guest, sectors, in_flight, next: 0 }
    }

    fn volume(&self) -> Emulated<()> {
        Emulated { volume: (), counters: Some(self.counters) }
    }

    /// Submits a request. Its data is in buffers of the lengths `cuts`, repeated.
    fn submit(&mut self, operation: Operation, first: u64, count: u32, cuts: &[u32]) -> Option<Submitted> {
        let tag = (0..TAGS).find(|tag| !self.in_flight.contains_key(tag))?;
        let has_data = matches!(operation, Operation::Read | Operation::Write { .. });
        let (mut segments, mut left) = (Vec::new(), if has_data { count * 512 } else { 0 });
        let mut at = u64::from(tag) * ROOM;
        for cut in cuts.iter().cycle() {
            if left == 0 {
                break;
            }
            let len = left.min(*cut);
            segments.push(Segment { gpa: at, len });
            at += u64::from(len);
            left -= len;
        }
        self.next = self.next.wrapping_add(1).max(1);
        let value = if matches!(operation, Operation::Write { .. }) { self.next } else { 0 };
        self.guest.write(u64::from(tag) * ROOM, &vec![value; count as usize * 512]).expect("it is memory");
        let data = Span::new(&segments, if has_data { count * 512 } else { 0 });
        let request = Request { operation, first, blocks: count, data, memory: &self.guest };
        let answer = self.emulate.submit(self.volume(), Tag(tag), &request, 0);
        if answer == Submitted::Busy {
            return Some(answer);
        }
        let range = first as usize..first as usize + count as usize;
        let values: Vec<Vec<u8>> = range.clone().map(|sector| self.may_read(sector)).collect();
        let changed = match operation {
            Operation::Read | Operation::Flush => 0..0,
            Operation::Discard => {
                let (from, to) = (range.start.next_multiple_of(8), range.end / 8 * 8);
                from..to.max(from)
            }
            _ => range,
        };
        for sector in changed {
            self.sectors[sector] = value;
            for other in self.in_flight.values_mut().filter(|other| other.operation == Operation::Read) {
                let place = (sector as u64).checked_sub(other.first).and_then(|n| other.values.get_mut(n as usize));
                place.into_iter().for_each(|values| values.push(value));
            }
        }
        if answer == Submitted::Pending {
            self.in_flight.insert(tag, InFlight { operation, first, values, segments });
        } else {
            assert_eq!(answer, Submitted::Done(Status::Ok), "only a discard of no whole block ends at once");
            assert!(operation == Operation::Discard);
        }
        Some(answer)
    }

    /// What a read of a sector may find now: what it should hold, and what it held before changes in flight.
    fn may_read(&self, sector: usize) -> Vec<u8> {
        let before = self.in_flight.values().filter(|other| other.operation != Operation::Read).filter_map(|other| {
            let at = (sector as u64).checked_sub(other.first)?;
            other.values.get(at as usize).cloned()
        });
        before.flatten().chain([self.sectors[sector]]).collect()
    }

    /// The storage ends one of its requests, and the device is polled.
    fn end(&mut self, which: usize) {
        let tags = self.emulate.inner().tags();
        if let Some(tag) = tags.get(which % tags.len().max(1)) {
            self.emulate.inner().end(*tag, Status::Ok);
        }
        self.poll();
    }

    fn poll(&mut self) {
        let mut ended = Vec::new();
        self.emulate.poll(0, &mut |tag, status| ended.push((tag, status)));
        for (Tag(tag), status) in ended {
            assert_eq!(status, Status::Ok);
            let InFlight { operation, values, segments, .. } = self.in_flight.remove(&tag).expect("it is in flight");
            if operation == Operation::Read {
                let mut bytes = vec![0; segments.iter().map(|segment| segment.len as usize).sum()];
                self.guest.read(u64::from(tag) * ROOM, &mut bytes).expect("it is memory");
                for (sector, allowed) in bytes.chunks(512).zip(values) {
                    assert!(allowed.contains(&sector[0]), "{} was read, {allowed:?} may be", sector[0]);
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
                }
            }
        }
    }

    fn settle(&mut self) {
        for which in 0..10_000 {
            if self.in_flight.is_empty() {
                return;
            }
            self.end(which);
        }
        panic!("{} requests do not end", self.in_flight.len());
    }

    /// The storage's bytes, one value a sector.
    fn stored(&mut self) -> Vec<u8> {
        let sector = |sector: &[u8]| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
            sector[0]
        };
        self.emulate.inner().bytes.chunks(512).map(sector).collect()
    }
}

#[derive(Clone, Debug)]
enum Action {
    Submit(Operation, u64, u32, Vec<u32>),
    End(usize),
}

fn action() -> impl Strategy<Value = Action> {
    let operation = prop_oneof![
        3 => Just(Operation::Read),
        5 => Just(Operation::Write { durable: false }),
        1 => Just(Operation::Discard),
        2 => Just(Operation::WriteZeroes { unmap: true, durable: false }),
        1 => Just(Operation::Flush),
    ];
    let odd = (200_u32..3000, 200_u32..3000).prop_map(|(one, other)| vec![1, one, other]);
    let cuts = prop_oneof![Just(vec![4096]), odd];
    prop_oneof![
        (operation, 0..SECTORS, 1_u32..100, cuts).prop_map(|(operation, first, count, cuts)| {
            let count = count.min((SECTORS - first) as u32);
            if operation == Operation::Flush {
                return Action::Submit(operation, 0, 0, cuts);
            }
            Action::Submit(operation, first, count, cuts)
        }),
        (0..64_usize).prop_map(Action::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sectors_hold_what_was_written_to_them(actions in prop::collection::vec(action(), 1..120)) {
        let mut stand = Stand::new();
        for action in actions {
            match action {
                Action::Submit(operation, first, count, cuts) => drop(stand.submit(operation, first, count, &cuts)),
                Action::End(which) => stand.end(which),
            }
        }
        stand.settle();
        prop_assert_eq!(stand.stored(), stand.sectors.clone());
    }
}

const WRITE: Operation = Operation::Write { durable: false };

#[test]
fn a_sector_is_written_by_reading_and_writing_its_block() {
    let mut stand = Stand::new();
    stand.emulate.inner().bytes.fill(7);
    stand.sectors.fill(7);
    assert_eq!(stand.submit(WRITE, 9, 1, &[100]), Some(Submitted::Pending));
    let held = |stand: &mut Stand| {
        stand.emulate.inner().held.values().map(|held| (held.operation, held.first, held.blocks)).collect::<Vec<_>>()
    };
    assert_eq!(held(&mut stand), [(Operation::Read, 1, 1)]);
    stand.end(0);
    assert_eq!(held(&mut stand), [(WRITE, 1, 1)]);
    stand.end(0);
    assert!(stand.in_flight.is_empty());
    assert_eq!(stand.stored(), stand.sectors);
    assert_eq!(stand.counters.partial_writes.get(), 1);
    // Whole blocks go there as they are.
    stand.submit(WRITE, 16, 24, &[4096]);
    assert_eq!(held(&mut stand), [(WRITE, 2, 3)]);
    stand.settle();
    assert_eq!(stand.counters.partial_writes.get(), 1);
    // The durable flag stays.
    stand.submit(Operation::Write { durable: true }, 3, 1, &[512]);
    stand.end(0);
    assert_eq!(held(&mut stand), [(Operation::Write { durable: true }, 0, 1)]);
}

#[test]
fn two_changes_of_a_block_wait_for_each_other_and_reads_do_not() {
    let mut stand = Stand::new();
    for (first, count) in [(8, 1), (8, 8)] {
        assert_eq!(stand.submit(WRITE, first, count, &[512]), Some(Submitted::Pending));
        for (operation, first, count) in [
            (WRITE, 15, 1),
            (WRITE, 8, 8),
            (WRITE, 0, 24),
            (Operation::WriteZeroes { unmap: false, durable: false }, 14, 9),
            (Operation::Discard, 0, 16),
        ] {
            assert_eq!(stand.submit(operation, first, count, &[512]), Some(Submitted::Busy), "{operation:?} {first}");
        }
        assert_eq!(stand.submit(WRITE, 7, 1, &[512]), Some(Submitted::Pending), "the block before");
        assert_eq!(stand.submit(WRITE, 16, 1, &[512]), Some(Submitted::Pending), "the block after");
        assert_eq!(stand.submit(Operation::Read, 8, 3, &[512]), Some(Submitted::Pending));
        stand.settle();
    }
    assert_eq!(stand.counters.overlaps.get(), 10);
    assert_eq!(stand.stored(), stand.sectors);
}

#[test]
fn a_read_or_a_write_beneath_that_fails_fails_the_request_and_leaves_the_block() {
    for fails_at in [0, 1] {
        let mut stand = Stand::new();
        stand.submit(WRITE, 9, 1, &[512]);
        let mut ended = Vec::new();
        for step in 0..=fails_at {
            let [tag] = stand.emulate.inner().tags()[..] else { panic!("one request beneath") };
            stand.emulate.inner().end(tag, if step == fails_at { Status::Failed } else { Status::Ok });
            stand.emulate.poll(0, &mut |tag, status| ended.push((tag, status)));
        }
        assert_eq!(ended, [(Tag(0), Status::Failed)]);
        assert!(stand.emulate.inner().bytes.iter().all(|byte| *byte == 0));
        // The block is free again.
        stand.in_flight.clear();
        assert_eq!(stand.submit(WRITE, 10, 1, &[512]), Some(Submitted::Pending));
    }
}

#[test]
fn a_cancelled_request_ends_when_the_storage_has_let_go_and_its_blocks_are_free() {
    for cancels in [false, true] {
        let mut stand = Stand::new();
        stand.emulate.inner().cancels = cancels;
        stand.submit(WRITE, 9, 1, &[512]);
        let volume = stand.volume();
        assert_eq!(stand.emulate.cancel(volume, Tag(0)), cancels);
        if !cancels {
            assert_eq!(stand.submit(WRITE, 10, 1, &[512]), Some(Submitted::Busy), "it may still be written");
            let mut ended = Vec::new();
            stand.emulate.inner().end(0, Status::Ok);
            stand.emulate.poll(0, &mut |tag, status| ended.push((tag, status)));
            assert_eq!(ended, [(Tag(0), Status::Failed)]);
            assert!(stand.emulate.inner().tags().is_empty(), "nothing more is begun");
        }
        stand.in_flight.clear();
        assert_eq!(stand.submit(WRITE, 10, 1, &[512]), Some(Submitted::Pending));
    }
}

#[test]
fn a_full_storage_is_tried_again() {
    let mut stand = Stand::new();
    stand.emulate.inner().depth = 1;
    assert_eq!(stand.submit(WRITE, 1, 1, &[512]), Some(Submitted::Pending));
    assert_eq!(stand.submit(WRITE, 9, 1, &[512]), Some(Submitted::Pending), "it waits in its buffer");
    assert_eq!(stand.submit(WRITE, 16, 8, &[512]), Some(Submitted::Busy));
    stand.settle();
    assert_eq!(stand.stored(), stand.sectors);
}

#[test]
fn the_shape_is_that_of_sectors_with_blocks_of_4096_beneath() {
    let stand = Stand::new();
    let shown = stand.emulate.geometry(stand.volume());
    assert_eq!((shown.block_bytes, shown.blocks, shown.physical_bytes), (512, SECTORS, 4096));
    assert_eq!((shown.max_discard, shown.max_zeroes, shown.discard_bytes), (8 * 64, 8 * 32, 4096));
    let as_it_is = Emulated { volume: (), counters: None };
    assert_eq!(stand.emulate.geometry(as_it_is).block_bytes, 4096);
}

/// Devices on parts of a storage, each with emulated blocks.
struct Several {
    emulate: Emulate<Parts<Slow>>,
    guest: GuestMemory,
    counters: &'static EmulationCounters,
    next: u16,
}

impl Several {
    fn new() -> Self {
        let emulate = Emulate::new(Parts::new(Slow::new(4096, 4096)), memory(0, BOUNCE_BYTES as usize));
        Self { emulate, guest: memory(0, 4096), counters: Box::leak(Box::default()), next: 0 }
    }

    /// The volume of a device.
    fn volume(&self, device: u64) -> Emulated<Part<()>> {
        let volume = Part::new((), 4096, device * 128, 128).expect("it is within");
        Emulated { volume, counters: Some(self.counters) }
    }

    /// A device writes a sector of a block of its own. Returns the request's tag if there was a bounce buffer for it.
    fn write(&mut self, device: u64) -> Option<Tag> {
        let of = self.volume(device);
        let segments = [Segment { gpa: 0, len: 512 }];
        let first = u64::from(self.next % 128) * 8 + 1;
        let data = Span::new(&segments, 512);
        let request = Request { operation: WRITE, first, blocks: 1, data, memory: &self.guest };
        self.next += 1;
        let tag = Tag(self.next);
        match self.emulate.submit(of, tag, &request, 0) {
            Submitted::Pending => Some(tag),
            Submitted::Busy => None,
            Submitted::Done(status) => panic!("{status:?}"),
        }
    }

    /// How many buffers a device gets that asks for as many as it can.
    fn flood(&mut self, device: u64) -> usize {
        (0..20).filter(|_| self.write(device).is_some()).count()
    }
}

#[test]
fn a_device_cannot_have_all_bounce_buffers_and_a_later_one_finds_its_share() {
    let mut several = Several::new();
    assert_eq!(several.flood(0), 4, "half of them for one that is alone");
    assert_eq!(several.flood(1), 2);
    assert_eq!(several.flood(2), 1);
    assert_eq!(several.flood(3), 1, "the last one is for a newcomer");
    assert_eq!(several.flood(0), 0);
}

#[test]
fn bounce_buffers_that_are_given_back_go_to_those_that_have_fewer() {
    let mut several = Several::new();
    let mut first = Vec::new();
    first.extend((0..20).filter_map(|_| several.write(0)));
    several.flood(1);
    several.flood(2);
    let lone = several.write(3).expect("the last one");
    assert!(several.write(4).is_none(), "there is none");
    // Device 0 gives two of its four back.
    several.emulate.inner().inner().cancels = true;
    let volumes = [several.volume(0), several.volume(3)];
    first.drain(..2).for_each(|tag| assert!(several.emulate.cancel(volumes[0], tag)));
    assert!(several.write(0).is_none(), "it has as many as are free");
    assert!(several.write(4).is_some() && several.write(5).is_some());
    assert!(several.emulate.cancel(volumes[1], lone));
    assert!(several.write(3).is_some());
}
