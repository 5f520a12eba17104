//! The fast path and the other path give every driver the same. Two guests with equal memory and equal disks do the same
//! steps. Somebody watches the requests of one of them, so they take no fast path. In the end memory, disk, counters and interrupts are equal.

use proptest::prelude::*;
use virtio::testing::TABLES;

use super::support::{
    Bench, FORMS, Guest, IN, IOERR, OK, OUT, SPLIT, Slow, base, header, in_two_regions, memory_disk, overlay_disk,
    with_disk,
};
use super::watched::{Shown, watch};
use crate::backend::{Block, Disk};
use crate::ram::{Ram, RamDisk};
use crate::storage::{Geometry, Request, Status, Storage, Submitted, Tag};
use crate::watch::Watch;
use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{Fine, GuestWeight, Limits, QUEUES};
use engine::testing::Recorder;
use trace::{Classes, Switch};
use virtio::config::Features;
use virtio::fault::Fault;
use virtio::testing::MEMORY;

/// Sectors of the disks.
const SECTORS: u64 = 64;

/// A storage that answers at once, later, not now, or with an error, depending on the blocks.
struct Mixed(Slow);

impl Storage for Mixed {
    type Volume = ();

    fn geometry(&self, (): ()) -> Geometry {
        self.0.geometry
    }

    fn submit(&mut self, (): (), tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        match (request.first + u64::from(request.blocks)) % 9 {
            0 => self.0.submit((), tag, request, now),
            1 if self.0.held.len() > 1 => Submitted::Busy,
            2 => Submitted::Done(Status::Failed),
            3 => Submitted::Done(Status::Unsupported),
            _ => {
                self.0.submit((), tag, request, now);
                self.0.end(tag.0, Status::Ok);
                let (_, status) = self.0.ended.pop().expect("it has ended");
                Submitted::Done(status)
            }
        }
    }

    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status)) {
        self.0.poll(now, ended);
    }

    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        self.0.cancel((), tag)
    }
}

/// Tests that look at a storage.
trait Look: Storage {
    /// Ends the request that is held for the longest time, if there is one.
    fn end_one(&mut self, _: Status) {}
    /// The contents, if they are the storage's.
    fn contents(&self) -> &[u8] {
        &[]
    }
}

impl Look for Ram {}

impl Look for Mixed {
    fn end_one(&mut self, status: Status) {
        if let Some(&tag) = self.0.tags().first() {
            self.0.end(tag, status);
        }
    }

    fn contents(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A step of a driver.
#[derive(Clone, Debug)]
enum Step {
    /// Offers a request: type, sector, where the header is cut, buffers of data (writable, length), bytes of the status.
    Offer(u32, u64, usize, Vec<(bool, usize)>, usize),
    /// Overwrites a field of a descriptor, or an entry of the available ring.
    Poke(u8, u64, u64, u8, u64),
    /// Waits for a turn.
    Turn,
    /// The storage ends a request that it holds.
    End(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![4 => Just(IN), 4 => Just(OUT), 1 => 0..16_u32];
    let sector = prop_oneof![6 => 0..SECTORS + 2, 1 => any::<u64>()];
    let cut = prop_oneof![6 => Just(16_usize), 1 => 0..16_usize];
    let len = prop_oneof![8 => Just(512_usize), 2 => Just(1024), 1 => 1..1100_usize];
    let data = (any::<bool>(), proptest::collection::vec(len, 0..4))
        .prop_map(|(way, lens)| lens.into_iter().map(|len| (way, len)).collect::<Vec<_>>());
    let mixed = proptest::collection::vec((any::<bool>(), 1..700_usize), 0..4);
    let usual = (any::<bool>(), 0..SECTORS, 1..3_usize).prop_map(|(read, sector, sectors)| {
        Step::Offer(if read { IN } else { OUT }, sector, 16, vec![(read, 512 * sectors)], 1)
    });
    let any_form =
        (kind, sector, cut, prop_oneof![8 => data, 1 => mixed], prop_oneof![8 => Just(1_usize), 1 => 0..3_usize])
            .prop_map(|(kind, sector, cut, data, status)| Step::Offer(kind, sector, cut, data, status));
    let value = prop_oneof![
        0..18_u64,
        Just(512),
        0..MEMORY as u64,
        // The end of the memory, or of its first region, and of the second one.
        (0..64_u64, 1..3_u64).prop_map(|(n, regions)| regions * MEMORY as u64 - n),
        (0..20_u64).prop_map(|n| u64::from(u32::MAX) - n),
        any::<u64>(),
    ];
    let poke = (0..4_u8, 0..12_u64, 0..4_u64, 0..4_u8, value)
        .prop_map(|(place, id, index, field, value)| Step::Poke(place, id, index, field, value));
    proptest::collection::vec(
        prop_oneof![6 => usual, 6 => any_form, 1 => poke, 3 => Just(Step::Turn), 2 => any::<bool>().prop_map(Step::End)],
        1..40,
    )
}

/// Carries out a step.
fn act<S: Look>(guest: &mut Guest, bench: &mut Bench<S>, step: &Step) {
    match step {
        Step::Offer(kind, sector, cut, data, status) => {
            let header = header(*kind, *sector);
            let filler: Vec<u8> = (0..1200).map(|n| (n % 199) as u8 ^ *sector as u8).collect();
            let (begin, rest) = header.split_at(*cut);
            let mut buffers = vec![Ok(begin), Ok(rest)];
            // Readable buffers come first.
            buffers.extend(data.iter().filter(|(writable, _)| !writable).map(|&(_, len)| Ok(&filler[..len])));
            buffers.extend(data.iter().filter(|(writable, _)| *writable).map(|&(_, len)| Err(len)));
            buffers.push(Err(*status));
            buffers.retain(|buffer| !matches!(buffer, Ok([]) | Err(0)));
            guest.offer(0, &buffers);
        }
        Step::Poke(place, id, index, field, value) => {
            let config = guest.queues[0].config;
            let at = match place {
                0 => config.desc + 16 * id,
                1 => {
                    let entry = config.avail + 4 + 2 * id;
                    return guest.memory.write_u16(entry, *value as u16).expect("the ring");
                }
                _ => TABLES + 1024 * id + 16 * index,
            };
            match field {
                0 => guest.memory.write_u64(at, *value),
                1 => guest.memory.write_u32(at + 8, *value as u32),
                2 => guest.memory.write_u16(at + 12, *value as u16),
                _ => guest.memory.write_u16(at + 14, *value as u16),
            }
            .expect("a descriptor");
        }
        Step::Turn => _ = bench.turn(),
        Step::End(good) => bench.storage().end_one(if *good { Status::Ok } else { Status::Failed }),
    }
}

/// Carries out all steps in both worlds and compares them.
fn compare<S: Look>(make: impl Fn() -> (Guest, Bench<S>), steps: &[Step]) -> Result<u64, TestCaseError> {
    let [mut fast, mut general] = [make(), make()];
    let shown = watch(&mut general.1, Box::leak(Box::default()));
    let worlds = [&mut fast, &mut general];
    for (guest, bench) in worlds {
        for step in steps {
            act(guest, bench, step);
        }
        for _ in 0..6 {
            bench.turn();
            bench.storage().end_one(Status::Ok);
        }
        bench.turn();
    }
    let interrupts = [fast.1.interrupts.take(), general.1.interrupts.take()];
    prop_assert_eq!(&interrupts[0], &interrupts[1]);
    prop_assert_eq!(fast.0.shared.needs_reset(), general.0.shared.needs_reset());
    prop_assert_eq!(fast.0.shared.faults().collect::<Vec<_>>(), general.0.shared.faults().collect::<Vec<_>>());
    prop_assert_eq!(fast.0.counted(), general.0.counted());
    prop_assert_eq!(fast.1.storage().contents(), general.1.storage().contents());
    const PART: usize = 0x1_0000;
    let end = fast.0.memory.regions().iter().map(|region| region.gpa + region.size).max().unwrap_or(0);
    for at in (0..end).step_by(PART) {
        let parts = [fast.0.bytes(at, PART), general.0.bytes(at, PART)];
        prop_assert!(parts[0] == parts[1], "memory from {at:#x} on differs");
    }
    shown.check(general.0.counters);
    prop_assert_eq!(general.1.engine.backend().paths.fast, 0);
    Ok(fast.1.engine.backend().paths.fast)
}

/// A guest in two regions with a RAM disk, attached.
fn with_disk_apart(disk: &'static RamDisk, features: Features) -> (Guest, Bench<Ram>) {
    let guest = in_two_regions(&disk.geometry(), features);
    let mut bench = Bench::new(Ram::new());
    assert_eq!(bench.attach(&guest, disk), Reply::Attached);
    (guest, bench)
}

/// The contents of a disk, read by another guest.
fn read_all(disk: &'static RamDisk) -> Vec<u8> {
    let (mut guest, mut bench) = with_disk(disk, SPLIT);
    let sent = guest.send(IN, 0, Some(Err(512 * SECTORS as usize)));
    assert_eq!(bench.ask(&mut guest, &sent).0, OK);
    guest.bytes(sent.at[1], 512 * SECTORS as usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn both_paths_give_the_same_over_ram_disks(
        steps in steps(),
        form in 0..3_usize,
        overlay in any::<bool>(),
        apart in any::<bool>(),
    ) {
        let disks = std::cell::RefCell::new(Vec::new());
        compare(
            || {
                // Two free blocks: most writes of a long conversation fail.
                let disk = if overlay { overlay_disk(base(512 * 64), 2) } else { memory_disk(512 * 64) };
                disks.borrow_mut().push(disk);
                if apart { with_disk_apart(disk, FORMS[form]) } else { with_disk(disk, FORMS[form]) }
            },
            &steps,
        )?;
        let disks = disks.into_inner();
        prop_assert_eq!(read_all(disks[0]), read_all(disks[1]));
    }

    #[test]
    fn both_paths_give_the_same_over_a_storage_that_answers_late_or_not_at_all(steps in steps(), form in 0..3_usize) {
        compare(
            || {
                let mut storage = Slow::new(512, SECTORS);
                storage.bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8 ^ (n >> 9) as u8);
                let guest = Guest::new(3, &storage.geometry, 1, FORMS[form]);
                let mut bench = Bench::new(Mixed(storage));
                assert_eq!(bench.attach(&guest, ()), Reply::Attached);
                (guest, bench)
            },
            &steps,
        )?;
    }
}

#[test]
fn requests_as_drivers_send_them_take_the_fast_path_and_others_do_not() {
    // On a packed ring without indirect tables, a request occupies several descriptors of the ring.
    let forms = [(FORMS[0], true), (FORMS[1], true), (FORMS[2], true), (FORMS[2] | Features::RING_PACKED, false)];
    for (features, fast) in forms {
        let usual: Vec<_> = (0..20)
            .map(|n| {
                Step::Offer(
                    if n % 3 == 0 { OUT } else { IN },
                    n % 60,
                    16,
                    vec![(n % 3 != 0, 512); 1 + n as usize % 3],
                    1,
                )
            })
            .collect();
        for make in [with_disk, with_disk_apart] {
            let taken = compare(|| make(memory_disk(512 * 64), features), &usual).expect("the same");
            assert_eq!(taken, if fast { 20 } else { 0 }, "{features:?}");
        }
        for odd in [
            Step::Offer(IN, 0, 9, vec![(true, 512)], 1),
            Step::Offer(IN, 0, 16, vec![(true, 512)], 2),
            Step::Offer(IN, 0, 16, vec![(false, 512)], 1),
            Step::Offer(IN, SECTORS, 16, vec![(true, 512)], 1),
            Step::Offer(8, 0, 16, vec![(true, 20)], 1),
        ] {
            let taken = compare(|| with_disk(memory_disk(512 * 64), features), &[odd]).expect("the same");
            assert_eq!(taken, 0);
        }
    }
}

#[test]
fn a_request_that_is_not_of_the_form_does_not_keep_others_from_the_fast_path() {
    let read = |sector| Step::Offer(IN, sector, 16, vec![(true, 512)], 1);
    let steps = [
        read(0),
        read(1),
        Step::Offer(IN, 2, 5, vec![(true, 512)], 1),
        read(3),
        Step::Offer(IN, 4, 16, vec![(true, 512); 2], 1),
        read(5),
    ];
    for features in [FORMS[0], FORMS[1]] {
        assert_eq!(compare(|| with_disk(memory_disk(512 * 64), features), &steps).expect("the same"), 5);
    }
}

#[test]
fn a_read_that_fails_amid_others_has_no_used_length() {
    for features in FORMS {
        let geometry = Slow::new(512, SECTORS).geometry;
        let mut guest = Guest::new(3, &geometry, 1, features);
        let mut bench = Bench::new(Mixed(Slow::new(512, SECTORS)));
        assert_eq!(bench.attach(&guest, ()), Reply::Attached);
        // The second fails at once. The fourth ends late.
        let sent: Vec<_> = [3, 1, 4, 8, 5].map(|sector| guest.send(IN, sector, Some(Err(512)))).into();
        bench.turn();
        let order = [(0, OK, 513), (1, IOERR, 0), (2, OK, 513), (4, OK, 513)];
        for (n, status, used) in order {
            assert_eq!((guest.used(), guest.status(&sent[n])), (Some((sent[n].id, used)), status));
        }
        assert_eq!(guest.used(), None);
        bench.storage().end_one(Status::Ok);
        bench.turn();
        assert_eq!(guest.used(), Some((sent[3].id, 513)));
    }
}

#[test]
fn a_head_that_the_device_holds_is_refused_in_the_same_visit() {
    // The request with this sector ends late. The driver then offers the same head again.
    let steps = [
        Step::Offer(IN, 8, 16, vec![(true, 512)], 1),
        Step::Offer(IN, 4, 16, vec![(true, 512)], 1),
        Step::Poke(1, 1, 0, 0, 0),
    ];
    for features in [FORMS[0], FORMS[2]] {
        let make = || {
            let mut guest = Guest::new(3, &Slow::new(512, SECTORS).geometry, 1, features);
            let mut bench = Bench::new(Mixed(Slow::new(512, SECTORS)));
            assert_eq!(bench.attach(&guest, ()), Reply::Attached);
            assert_eq!(guest.used(), None);
            (guest, bench)
        };
        assert_eq!(compare(make, &steps).expect("the same"), 1);
        let (mut guest, mut bench) = make();
        for step in &steps {
            act(&mut guest, &mut bench, step);
        }
        bench.turn();
        assert_eq!(guest.faults(Fault::HeadOutstanding), 1);
    }
}

#[test]
fn an_indirect_table_longer_than_the_queue_is_refused() {
    for features in [FORMS[0], FORMS[1]] {
        for (bytes, fast) in [(254, 1), (255, 0)] {
            // Header and status have two of the 256 descriptors.
            let mut data = vec![(true, 1); bytes - 1];
            data.push((true, 512 - data.len()));
            let steps = [Step::Offer(IN, 8, 16, data, 1)];
            let make = || with_disk(memory_disk(512 * 64), features);
            assert_eq!(compare(make, &steps).expect("the same"), fast, "{bytes}");
            let (mut guest, mut bench) = make();
            act(&mut guest, &mut bench, &steps[0]);
            bench.turn();
            assert_eq!(guest.faults(Fault::ChainTooLong), 1 - fast);
        }
    }
}

#[test]
fn a_visit_ends_when_its_bytes_are_used_up() {
    for watched in [false, true] {
        let disk = memory_disk(512 * 64);
        let mut guest = Guest::new(3, &disk.geometry(), 1, SPLIT);
        let (control, interrupts): (&Control<_>, &Recorder) = (Box::leak(Box::default()), Box::leak(Box::default()));
        let limits = Limits { requests: 256, bytes: 2048, quantum: 1 << 40, least: 16, stall: 1 << 40 };
        let mut engine =
            Box::new(Engine::new(control, Block::new(Ram::new()), Fine::<QUEUES>::new(limits), interrupts));
        if watched {
            let on: &Switch = Box::leak(Box::default());
            on.set(Classes::DISKS);
            engine.backend_mut().watch(Watch { watcher: Box::leak(Box::<Shown>::default()), on });
        }
        let attachment = Attachment {
            slot: 3,
            number: 3,
            shared: guest.shared,
            memory: guest.memory.clone(),
            requests: Requests::Poll,
            share: GuestWeight::of_guest(3),
            config: Disk { volume: disk, serial: [0; 20], counters: guest.counters, record: None },
            state: None,
        };
        assert!(control.submit(Command::Attach(attachment)).is_ok());
        (0..2).for_each(|now| _ = engine.turn(now));
        for _ in 0..7 {
            guest.send(IN, 0, Some(Err(1024)));
        }
        let taken: Vec<u32> = (2..7).map(|now| engine.turn(now)).collect();
        assert_eq!(taken, [2, 2, 2, 1, 0]);
    }
}

#[test]
fn any_field_of_a_chain_may_be_wrong() {
    let requests = [Step::Offer(IN, 8, 16, vec![(true, 512)], 1), Step::Offer(IN, 4, 16, vec![(true, 512); 2], 1)];
    // 0: the ring's descriptors. 2: those of the indirect table.
    for (features, place) in [(FORMS[0], 0), (FORMS[0], 2), (FORMS[1], 0), (FORMS[1], 2), (FORMS[2], 0)] {
        for index in 0..if features == FORMS[2] || place == 2 { 3 } else { 1 } {
            let (id, index) = if place == 0 { (index, 0) } else { (0, index) };
            let lengths =
                [0, 1, 2, 15, 16, 17, 32, 47, 48, 49, 64, 512, 1024, u64::from(u32::MAX)].map(|value| (1, value));
            let flags_and_next =
                (0..9).chain([0x80, 0x8000, 0x8080, 0x8084, 256]).flat_map(|value| [(2, value), (3, value)]);
            for (field, value) in lengths.into_iter().chain(flags_and_next) {
                for request in &requests {
                    let steps = [request.clone(), Step::Poke(place, id, index, field, value), requests[0].clone()];
                    let same = compare(|| with_disk(memory_disk(512 * 64), features), &steps);
                    assert!(same.is_ok(), "{place} {id} {index} {field} {value:#x} {request:?}: {same:?}");
                }
            }
        }
    }
}

#[test]
fn every_buffer_must_be_in_one_region_whatever_the_last_one_was() {
    let end = 2 * MEMORY as u64;
    let read = |sector, lens: &[usize]| Step::Offer(IN, sector, 16, lens.iter().map(|&len| (true, len)).collect(), 1);
    // The ring's descriptors, or those of the second request's indirect table.
    for (features, place, id) in [(FORMS[0], 2, 1), (FORMS[1], 2, 1), (FORMS[2], 0, 3)] {
        for index in 0..3 {
            for at in
                [0, 0x10_0000, MEMORY as u64 - 1, MEMORY as u64 - 15, MEMORY as u64, end - 511, end - 1, end, u64::MAX]
            {
                for lens in [&[512][..], &[256, 256]] {
                    let poke =
                        if place == 0 { Step::Poke(0, id + index, 0, 0, at) } else { Step::Poke(2, id, index, 0, at) };
                    let steps = [read(0, &[512]), read(1, lens), poke, read(2, &[512]), Step::Turn];
                    let same = compare(|| with_disk_apart(memory_disk(512 * 64), features), &steps);
                    assert!(same.is_ok(), "{features:?} {index} {at:#x} {lens:?}: {same:?}");
                }
            }
        }
    }
}

#[test]
fn linked_chains_of_one_buffer_have_one_form_only() {
    // A status byte that has a next descriptor, a chain that ends too early, and one that names itself.
    let request = Step::Offer(IN, 8, 16, vec![(true, 512)], 1);
    for (id, field, value) in
        [(2, 2, 3), (1, 2, 2), (0, 2, 0), (0, 3, 0), (1, 3, 0), (1, 3, 4), (1, 3, 256), (0, 3, 0xffff)]
    {
        let steps = [request.clone(), request.clone(), Step::Poke(0, 3 + id, 0, field, value)];
        let taken = compare(|| with_disk(memory_disk(512 * 64), FORMS[2]), &steps).expect("the same");
        assert_eq!(taken, 1, "{id} {field} {value}");
    }
    // Linked in any order of the table.
    let steps = [request.clone(), Step::Turn, request.clone(), Step::Poke(0, 0, 0, 3, 2), Step::Poke(0, 2, 0, 3, 1)];
    assert!(compare(|| with_disk(memory_disk(512 * 64), FORMS[2]), &steps).is_ok());
}

#[test]
fn an_indirect_table_that_was_not_negotiated_is_refused() {
    for features in [FORMS[2], FORMS[2] | Features::RING_PACKED] {
        let (mut guest, mut bench) = with_disk(memory_disk(512 * 64), features);
        // A table as the driver of a ring with indirect tables would write it, and one descriptor that names it.
        let with_tables = features | Features::INDIRECT_DESC;
        let mut driver = virtio::testing::DriverQueue::new(&guest.memory, 0, 256, with_tables);
        guest.memory.write(0x20_0000, &header(IN, 0)).unwrap();
        driver.add(&[(0x20_0000, 16, false), (0x20_1000, 512, true), (0x20_2000, 1, true)]).unwrap();
        guest.shared.kick(0);
        bench.turn();
        assert_eq!(guest.faults(Fault::IndirectNotNegotiated), 1);
        assert_eq!(guest.used(), None);
    }
}
