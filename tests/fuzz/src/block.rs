//! A conversation over two disks. One driver does anything to its rings, its configuration and its device. The other keeps
//! the rules of the rings, and its requests are of all kinds, right and wrong. Whatever happens: each request of the second
//! one is answered exactly once, as the standard says, with its own data; nothing is written outside its buffers or outside
//! the disks; the storage gets only requests within its volumes; a reset is always done; and the first one's disk works
//! again when its driver behaves.
//!
//! Beneath are RAM disks and a storage that completes late (`late.rs`), or NVMe namespaces and virtio disks (`disks.rs`).

mod disks;
mod places;
mod virtio_device;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use block::backend::{Block, Disk};
use block::counters::BlockCounters;
use block::device::{self, Options};
use block::pair::{Either, Pair};
use block::ram::{OVERLAY_BLOCK, Overlay, OverlayMemory, Ram, RamDisk};
use block::storage::Status;
use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, GuestWeight, Limits, PerDevice};
use engine::testing::Recorder;
use memory::host::HostMemory;
use virtio::config::Features;
use virtio::phase::Phase;
use virtio::shared::Shared;
use virtio::testing::MEMORY;

use crate::hostile::Hostile;
use crate::input::Input;
use crate::late::{BLOCK_BYTES, Late};
use crate::orderly::{self, Orderly};
use crate::play;
use disks::{Disks, Kind, Machine};
use places::{HOSTILE, ORDERLY};

/// Blocks of the hostile guest's overlay, and bytes of the base beneath it: more than is moved in one turn.
const OVERLAY_BLOCKS: usize = 4;
const BASE: usize = (700 << 10) - 100;
/// Forms of a world over RAM disks or the late storage, and those over other disks for each of their kinds.
const PLAIN_FORMS: usize = 32;
const DISK_FORMS: usize = 4;
const FORMS: usize = PLAIN_FORMS + DISK_FORMS * Kind::ALL.len();
/// Address in the hostile guest's memory of the data of requests of the usual form.
const DATA: u64 = 0x20_0000;
/// Turns in which a device that does not work is given up.
const MOST_WAITS: usize = 400;
/// Bytes before and behind each part of a disk in which nobody has any business, and what is in them.
const GUARD: usize = 8192;
const UNTOUCHED: u8 = 0xa5;

type Storages = Pair<Ram, Pair<Disks, Late>>;
type Volume = Either<&'static RamDisk, Either<disks::Volume, usize>>;
type Blocks = Engine<Block<Storages>, Chosen, &'static Recorder>;

/// Memory of a disk between two guards.
struct Guarded(&'static [AtomicU8]);

impl Guarded {
    fn new(bytes: usize) -> Self {
        let all: Vec<AtomicU8> = (0..bytes + 2 * GUARD).map(|_| AtomicU8::new(UNTOUCHED)).collect();
        let guarded = Self(all.leak());
        guarded.inner().zero();
        guarded
    }

    fn inner(&self) -> HostMemory {
        HostMemory::new(&self.0[GUARD..self.0.len() - GUARD])
    }

    fn check(&self) {
        let (before, behind) = (&self.0[..GUARD], &self.0[self.0.len() - GUARD..]);
        let touched = |guard: &[AtomicU8]| guard.iter().any(|byte| byte.load(Ordering::Relaxed) != UNTOUCHED);
        assert!(!touched(before) && !touched(behind), "something was written outside of a disk");
    }
}

/// The guests and the engine. They are made once for each form, because tests' memory is never given back; a run begins by
/// starting all devices anew.
struct World {
    engine: Box<Blocks>,
    interrupts: &'static Recorder,
    hostile: Hostile,
    orderly: Orderly,
    volumes: [Volume; 2],
    overlay: &'static RamDisk,
    guarded: [Guarded; 2],
    counters: [&'static BlockCounters; 2],
    machine: Option<Machine>,
    /// The orderly guest's part of a disk is wiped as at the start of the machine.
    wipes: bool,
    now: u64,
    attached: bool,
}

fn words(count: usize) -> &'static [AtomicU32] {
    (0..count).map(|_| AtomicU32::new(0)).collect::<Vec<_>>().leak()
}

impl World {
    /// Bits of `form`: packed rings of each guest; whether each guest's disk completes late; the schedule. Forms behind
    /// [`PLAIN_FORMS`] have the kind of the disks in the place of the upper bits.
    fn new(form: usize) -> Self {
        let bit = |n: usize| form >> n & 1 != 0;
        let kind = form.checked_sub(PLAIN_FORMS).map(|form| Kind::ALL[form / DISK_FORMS]);
        let guarded = [OVERLAY_BLOCKS * OVERLAY_BLOCK, orderly::SECTORS as usize * 512].map(Guarded::new);
        let base: &[u8] = (0..BASE).map(|n| n as u8).collect::<Vec<_>>().leak();
        let memory = OverlayMemory {
            map: words(Overlay::map_entries(BASE)),
            returned: words(OVERLAY_BLOCKS),
            data: guarded[HOSTILE].inner(),
        };
        let overlay: &RamDisk = Box::leak(Box::new(RamDisk::of_overlay(Overlay::new(base, memory))));
        let plain: &RamDisk = Box::leak(Box::new(RamDisk::of_memory(guarded[ORDERLY].inner(), false)));
        let mut machine = kind.map(Machine::new);
        let (disks, of_machine) = match &mut machine {
            Some(machine) => {
                let (disks, volumes) = machine.start(1, false);
                (disks, Some(volumes.map(|volume| Either::Second(Either::First(volume)))))
            }
            None => (disks::none(), None),
        };
        let late = Late::new(orderly::SECTORS * 512 / u64::from(BLOCK_BYTES));
        let storage = Pair::new(Ram::new(), Pair::new(disks, late));
        let volumes = of_machine.unwrap_or_else(|| {
            [(overlay, HOSTILE), (plain, ORDERLY)].map(|(disk, late)| {
                if bit(2 + late) { Either::Second(Either::Second(late)) } else { Either::First(disk) }
            })
        });

        let devices = volumes.map(|volume| {
            let geometry = block::storage::Storage::geometry(&storage, volume);
            let options = Options { queues: 2, packed: true, writeback: true };
            let shared: &Shared = Box::leak(Box::new(Shared::new(device::config(&geometry, &options))));
            shared
        });
        let features = [HOSTILE, ORDERLY].map(|guest| {
            let mut features = Features::from_bits_retain(devices[guest].offered());
            features.set(Features::RING_PACKED, bit(guest));
            features
        });
        let limits = Limits { requests: 64, bytes: 64 << 10, quantum: 8, least: 4, stall: 2 };
        let is_fine = if kind.is_some() { bit(0) } else { bit(4) };
        let schedule = if is_fine { Chosen::Fine(Fine::new(limits)) } else { Chosen::PerDevice(PerDevice::new(16)) };
        let memories = [HOSTILE, ORDERLY].map(|guest| match &machine {
            Some(machine) => machine.memory(guest),
            None => memory::guest::testing::memory(0, MEMORY),
        });
        let [of_hostile, of_orderly] = memories;
        let discard = kind.map_or((1, 0), |kind| (kind.discard_unit(), places::DISCARDED));
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        Self {
            engine: Box::new(Engine::new(control, Block::new(storage), schedule, interrupts)),
            interrupts,
            hostile: Hostile::within(of_hostile, devices[HOSTILE], features[HOSTILE]),
            orderly: Orderly::new(of_orderly, devices[ORDERLY], features[ORDERLY], discard),
            volumes,
            overlay,
            guarded,
            counters: [Box::leak(Box::default()), Box::leak(Box::default())],
            machine,
            wipes: false,
            now: 0,
            attached: false,
        }
    }

    fn late(&mut self) -> &mut Late {
        self.engine.backend_mut().storage_mut().second_mut().second_mut()
    }

    fn turn(&mut self) {
        self.turn_after(1);
    }

    /// A turn at a later time.
    fn turn_after(&mut self, ticks: u64) {
        let Self { engine, machine, now, .. } = self;
        turn(engine, machine, now, [self.hostile.shared, self.orderly.shared], ticks);
        self.interrupts.take();
    }

    /// What the storage has ends.
    fn let_go(&mut self) {
        (0..self.late().held()).for_each(|_| self.late().end(0, Status::Ok));
        let time = self.machine.as_mut().map_or(1, Machine::let_go);
        self.turn_after(time);
    }

    fn command(&mut self, command: Command<Disk<Volume>>) -> Reply {
        play::command(self.engine.control(), command, || {
            self.turn();
            // What is in flight has to end before a device is detached.
            self.let_go();
        })
    }

    fn attach(&mut self, slot: usize, requests: Requests) {
        let (shared, memory) = match slot {
            HOSTILE => (self.hostile.shared, self.hostile.memory.clone()),
            _ => (self.orderly.shared, self.orderly.memory.clone()),
        };
        let disk =
            Disk { volume: self.volumes[slot], serial: *orderly::SERIAL, counters: self.counters[slot], record: None };
        let attachment = Attachment {
            slot,
            number: slot,
            shared,
            memory,
            requests,
            share: GuestWeight::of_guest(slot),
            config: disk,
            state: None,
        };
        assert_eq!(self.command(Command::Attach(attachment)), Reply::Attached);
    }

    /// Zeroes the orderly guest's disk.
    fn empty_orderly(&mut self) {
        self.guarded[ORDERLY].inner().zero();
        self.late().clear(ORDERLY);
        if let Some(machine) = &self.machine {
            machine.orderly_part(|part| part.fill(0));
        }
    }

    /// The hostile driver starts anew, and asks for much at once: requests of the usual form.
    fn ask_much(&mut self, input: &mut Input<'_>) {
        let Self { engine, machine, hostile, orderly, now, .. } = self;
        let shared = [hostile.shared, orderly.shared];
        hostile.restart(&mut || turn(engine, machine, now, shared, 1));
        for n in 0..1 + u64::from(input.byte() % 4) {
            let (kind, is_odd) = (input.byte(), input.byte().is_multiple_of(16));
            let sectors = if kind & 8 == 0 { input.within(1, 40) } else { input.within(1, 1400) };
            let sector = if kind & 16 == 0 { input.within(0, 130) } else { input.within(0, 300) };
            let (head, status) = (Hostile::buffer(2 * n), Hostile::buffer(2 * n + 1));
            let (number, len, is_input) = match kind % 8 {
                0..3 => (0_u32, sectors * 512, true),
                3 | 4 => (1, sectors * 512, false),
                5 => (4, 0, false),
                6 => (11, 16, false),
                _ => (13, 16, false),
            };
            let bytes = [&number.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
            let range = [&sector.to_le_bytes()[..], &(sectors as u32).to_le_bytes(), &[0; 4]].concat();
            let data = DATA + n * 1400 * 512 / 4;
            let memory = &hostile.memory;
            memory.write(head, &bytes).and_then(|()| memory.write(data, &range)).expect("in its memory");
            let middle = (len != 0).then_some((data + u64::from(is_odd), len as u32, is_input));
            let chain: Vec<_> = [(head, 16, false)].into_iter().chain(middle).chain([(status, 1, true)]).collect();
            let _ = hostile.queue(0).add(&chain);
        }
        hostile.shared.kick(0);
        self.turn();
    }
}

/// A turn of the engine. What the storage has of a device that is being reset ends: a reset waits for it.
fn turn(engine: &mut Blocks, machine: &mut Option<Machine>, now: &mut u64, shared: [&'static Shared; 2], ticks: u64) {
    let mut step = |engine: &mut Blocks, machine: &mut Option<Machine>, ticks| {
        *now += ticks;
        if let Some(machine) = machine {
            machine.pass(ticks, *now);
        }
        engine.turn(*now);
    };
    let waits = |shared: &Shared| shared.phase() == Phase::Resetting || shared.queues_change();
    step(engine, machine, ticks);
    for _ in 0..MOST_WAITS {
        if machine.is_none() || !shared.into_iter().any(waits) {
            break;
        }
        let time = machine.as_mut().map_or(1, Machine::let_go);
        step(engine, machine, time);
    }
    let late = engine.backend_mut().storage_mut().second_mut().second_mut();
    for (volume, shared) in shared.into_iter().enumerate() {
        if shared.reset_done() {
            assert_eq!(late.held_of(volume), 0, "a reset is done while the storage has a request");
        }
        if waits(shared) {
            late.end_all(volume);
        }
    }
}

impl play::World for World {
    /// All devices start anew, with empty disks.
    fn begin(&mut self, requests: Requests) {
        if self.attached {
            for slot in [HOSTILE, ORDERLY] {
                assert!(matches!(self.command(Command::Detach { slot }), Reply::Detached(_)));
            }
        }
        assert_eq!(self.late().held(), 0, "a device is detached while the storage has its memory");
        (self.late().depth, self.late().cancels) = (usize::MAX, false);
        if let Some(machine) = &mut self.machine {
            // The devices of the run before are gone, and new ones are there.
            let (disks, volumes) = machine.start(self.now, self.wipes);
            let late = Late::new(orderly::SECTORS * 512 / u64::from(BLOCK_BYTES));
            *self.engine.backend_mut().storage_mut() = Pair::new(Ram::new(), Pair::new(disks, late));
            self.volumes = volumes.map(|volume| Either::Second(Either::First(volume)));
        }
        self.hostile.shared.restart();
        self.orderly.shared.restart();
        self.empty_orderly();
        self.hostile.start();
        self.orderly.start();
        self.attach(HOSTILE, requests);
        self.attach(ORDERLY, Requests::Poll);
        self.attached = true;
        self.turn();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..6 => {
                let Self { engine, machine, hostile, orderly, now, .. } = self;
                let shared = [hostile.shared, orderly.shared];
                hostile.step(input, &mut || turn(engine, machine, now, shared, 1));
            }
            6 if input.byte() < 64 => self.ask_much(input),
            6 => {
                // The head of a request, of all kinds.
                let kind = [0_u32, 1, 4, 8, 11, 13, 2, 0xffff][usize::from(input.byte() % 8)];
                let sector = if input.byte().is_multiple_of(4) { input.wide() } else { u64::from(input.byte() % 140) };
                let head = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
                let _ = self.hostile.memory.write(Hostile::buffer(input.byte().into()), &head);
            }
            7..11 => self.orderly.send(input),
            11 | 12 if self.machine.is_some() => {
                self.machine.as_mut().into_iter().for_each(|machine| machine.step(input));
                self.turn();
            }
            11 | 12 => {
                let which = usize::from(input.byte());
                let status = [Status::Ok, Status::Failed, Status::Unsupported][usize::from(input.byte() % 3)];
                self.late().end_with(which, |volume| if volume == ORDERLY { Status::Ok } else { status });
                self.turn();
            }
            13 => {
                for _ in 0..1 + input.byte() % 4 {
                    self.turn();
                }
                self.orderly.receive();
            }
            14 if self.machine.is_some() && input.flag() => {
                // A device that does not answer is asked whether it works, and given up later. The orderly guest's has nothing.
                for _ in 0..8 {
                    self.let_go();
                }
                self.turn_after(input.within(1_000_000, 70_000_000));
            }
            14 if input.flag() => {
                let depth = if input.flag() { usize::MAX } else { usize::from(input.byte() % 4) };
                let cancels = input.flag();
                (self.late().depth, self.late().cancels) = (depth, cancels);
            }
            14 => {
                // The orderly guest's driver is loaded anew. What was in flight may have been done.
                self.orderly.shared.request_reset();
                (0..4).for_each(|_| self.turn());
                assert!(self.orderly.shared.reset_done(), "a reset is always done");
                if let Some(machine) = &self.machine {
                    machine.grant(ORDERLY, false);
                }
                self.let_go();
                if let Some(machine) = &self.machine {
                    machine.grant(ORDERLY, true);
                }
                self.empty_orderly();
                self.orderly.start();
                self.turn();
            }
            _ => {
                self.now += input.within(0, 3000);
                self.turn();
            }
        }
    }

    /// The orderly guest has all its answers, and nobody has done anything to it.
    fn check(&mut self) {
        self.late().depth = usize::MAX;
        for _ in 0..200 {
            self.turn();
            self.let_go();
            self.orderly.receive();
            if self.orderly.in_flight() == 0 {
                break;
            }
        }
        assert_eq!(self.orderly.in_flight(), 0, "requests without an answer");
        assert!(!self.orderly.shared.needs_reset(), "the second guest keeps the rules");
        assert_eq!(self.orderly.shared.faults().map(|(_, n)| n).sum::<u64>(), 0, "the second guest keeps the rules");
        self.guarded.iter().for_each(Guarded::check);
        if let Some(machine) = &self.machine {
            machine.check();
            machine.orderly_part(|part| assert!(self.orderly.disk() == part, "the disk has what was written"));
        }
        let used = self.overlay.overlay().map_or(0, |overlay| overlay.used());
        assert!(used as usize <= OVERLAY_BLOCKS, "{used} blocks of an overlay of {OVERLAY_BLOCKS}");
    }

    /// The hostile driver behaves now: its disk works.
    fn settle(&mut self) {
        let Self { engine, machine, hostile, orderly, now, .. } = self;
        let shared = [hostile.shared, orderly.shared];
        hostile.restart(&mut || turn(engine, machine, now, shared, 1));
        let (head, serial, status) = (Hostile::buffer(0), Hostile::buffer(1), Hostile::buffer(2));
        let memory = self.hostile.memory.clone();
        memory.write(head, &[&8_u32.to_le_bytes()[..], &[0; 12]].concat()).expect("in its memory");
        memory.write(status, &[UNTOUCHED]).expect("in its memory");
        let chain = [(head, 16, false), (serial, 20, true), (status, 1, true)];
        assert!(self.hostile.queue(0).add(&chain).is_some(), "the queue is empty");
        self.hostile.shared.kick(0);
        (0..4).for_each(|_| self.turn());
        let mut bytes = [0; 20];
        memory.read(serial, &mut bytes).expect("in its memory");
        let written = self.hostile.queue(0).take_used().map(|(_, written)| written);
        assert_eq!((written, memory.read_u8(status).ok()), (Some(21), Some(0)), "after a reset a disk works again");
        assert_eq!(&bytes, orderly::SERIAL);
    }
}

thread_local! {
    static WORLDS: RefCell<[Option<World>; FORMS]> = const { RefCell::new([const { None }; FORMS]) };
}

/// The target.
///
/// # Panics
/// The back-end is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let form = usize::from(input.byte()) % FORMS;
    let requests = play::requests(&mut input);
    WORLDS.with_borrow_mut(|worlds| {
        let world = worlds[form].get_or_insert_with(|| World::new(form));
        world.wipes = bytes.len().is_multiple_of(4);
        play::play(world, requests, &mut input);
    });
}

crate::planted::tests!(requests_by_the_rules_are_answered_whatever_another_driver_does, 256, 1..2000);

#[cfg(test)]
mod on_disks {
    use super::{FORMS, PLAIN_FORMS};

    #[test]
    fn a_planted_fault_is_found_over_each_kind_of_disk() {
        for form in PLAIN_FORMS..FORMS {
            crate::planted::is_found(|bytes| super::run(&[&[form as u8], &bytes[1..]].concat()));
        }
    }
}
