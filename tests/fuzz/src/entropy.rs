//! A conversation over two entropy devices. One driver does anything to its rings and its device. The other keeps the rules. The source
//! is the CPU's of the product, with instructions that fail and repeat themselves, and it may also have no bytes.
//!
//! - The first guest's memory changes only where one of its descriptors has said that the device may write, and only by the bytes that the
//!   source has just given: no more of them than were given, and none after a failure of the source. Else only its used ring changes. The
//!   target looks for the descriptors itself, before each request that is filled.
//! - A guest gets no more than its rate and its burst, counted from the attachment on.
//! - Each request of the second guest is answered once, with bytes that the source has given for nobody else, and nothing beside them is
//!   written. Nothing of it is written after a reset. It keeps its device whatever the first one does.
//! - A reset is always done, and the first one's device works again when its driver behaves.
//! - The same word does not come twice in a row, whatever the CPU's instructions give.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{GuestWeight, PerDevice};
use engine::testing::Recorder;
use entropy::backend::{Entropy, MAX_BYTES};
use entropy::counters::EntropyCounters;
use entropy::cpu::{Cpu, Instructions};
use entropy::device;
use entropy::limit::Limit;
use entropy::source::Source;
use memory::GuestMemory;
use virtio::config::Features;
use virtio::shared::Shared;
use virtio::testing::{BUFFERS, DriverQueue, MEMORY, TABLES, set_up_interrupts};

use crate::hostile::Hostile;
use crate::input::Input;
use crate::planted::planted;
use crate::play;

/// Slots of the two devices.
const HOSTILE: usize = 0;
const ORDERLY: usize = 1;
/// Rates of guests: none, one that is seldom reached, and one that is reached by the first request.
const LIMITS: [Limit; 3] = [
    Limit { ticks_per_byte: 0, burst: 0 },
    Limit { ticks_per_byte: 2, burst: 1000 },
    Limit { ticks_per_byte: 50, burst: MAX_BYTES as u64 },
];
/// Where a hostile driver's rings, tables and buffers are, and the end of its memory. The rest is compared once, at the end of a run.
const WATCHED: [(usize, usize); 4] = [
    (0, 0x1_1000),
    (TABLES as usize, TABLES as usize + 0x1000),
    (BUFFERS as usize, BUFFERS as usize + 0x1_1000),
    (MEMORY - 0x1000, MEMORY),
];
/// Where a planted fault writes.
const NOBODYS: usize = MEMORY - 0x800;
/// Bytes of the orderly guest's memory for a request, and how many requests have memory of their own.
const AREA: usize = 0x400;
const AREAS: u64 = 64;
/// Most bytes between two of its buffers, and what is in its memory where nobody has written.
const GAP: usize = 16;
const UNTOUCHED: u8 = 0xa5;
/// Requests that it has at a time.
const PENDING: usize = 8;

/// Flags of a descriptor (virtio 1.3 2.7.5).
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// What the CPU's instructions do.
#[derive(Clone, Copy, Debug, Default)]
struct Hardware {
    /// RDSEED and RDRAND are there.
    seed: bool,
    random: bool,
    /// They fail now and then.
    fails: bool,
    /// They always give the same.
    stuck: bool,
}

/// The CPU's instructions.
struct Fake {
    does: Rc<Cell<Hardware>>,
    state: u64,
}

impl Fake {
    fn word(&mut self, there: bool) -> Option<u64> {
        // Xorshift (Marsaglia).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let Hardware { fails, stuck, .. } = self.does.get();
        let gives = there && !(fails && self.state >> 40 & 7 < 6);
        gives.then_some(if stuck { 0x5a5a } else { self.state })
    }
}

impl Instructions for Fake {
    fn seed(&mut self) -> Option<u64> {
        self.word(self.does.get().seed)
    }

    fn random(&mut self) -> Option<u64> {
        self.word(self.does.get().random)
    }
}

/// What the source has given.
struct Fill {
    bytes: Vec<u8>,
    /// Some of it was written to the first guest's memory.
    went_to_hostile: bool,
}

/// Looks at the first guest's memory.
struct Judge {
    memory: GuestMemory,
    shared: &'static Shared,
    /// The memory as it was.
    seen: Vec<u8>,
    now: Vec<u8>,
    /// Where the driver has let the device write: start and end.
    offered: BTreeSet<(u64, u64)>,
    /// Where used rings were.
    used: BTreeSet<(u64, u64)>,
    /// What the source has given in this run.
    fills: Vec<Fill>,
    /// The last call of the source has given the last of `fills`, and it is not known yet where that was written.
    is_fresh: bool,
    /// How often the source has no bytes.
    dry: u8,
}

impl Judge {
    fn new(memory: GuestMemory, shared: &'static Shared) -> Self {
        Self {
            memory,
            shared,
            seen: vec![0; MEMORY],
            now: vec![0; MEMORY],
            offered: BTreeSet::new(),
            used: BTreeSet::new(),
            fills: Vec::new(),
            is_fresh: false,
            dry: 0,
        }
    }

    /// A run begins: nothing was offered, and all memory is zero but for rings.
    fn begin(&mut self) {
        self.seen.fill(0);
        self.offered.clear();
        self.used.clear();
        self.fills.clear();
        (self.is_fresh, self.dry) = (false, 0);
    }

    /// Notes what the driver has done to its memory.
    fn accept(&mut self) {
        for (start, end) in WATCHED {
            self.memory.read(start as u64, &mut self.seen[start..end]).expect("its memory");
        }
        self.scan();
    }

    /// Notes what the driver's descriptors offer now.
    fn scan(&mut self) {
        let queue = self.shared.queue(0);
        // A larger queue is refused.
        if queue.size > self.shared.max_queue_size() {
            return;
        }
        self.used.insert((queue.used, queue.used.saturating_add(6 + 8 * u64::from(queue.size))));
        for index in 0..u64::from(queue.size) {
            let Some((at, len, flags)) = self.descriptor(queue.desc, index) else { continue };
            if flags & INDIRECT == 0 {
                self.offer(at, len, flags);
                continue;
            }
            for index in 0..u64::from(len / 16).min(1024) {
                match self.descriptor(at, index) {
                    Some((at, len, flags)) => self.offer(at, len, flags),
                    None => break,
                }
            }
        }
    }

    fn descriptor(&self, table: u64, index: u64) -> Option<(u64, u32, u16)> {
        let at = table.checked_add(16 * index)?;
        let mut bytes = [0; 16];
        self.memory.read(at, &mut bytes).ok()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        Some((u64::from(word(0)) | u64::from(word(4)) << 32, word(8), word(12) as u16))
    }

    fn offer(&mut self, at: u64, len: u32, flags: u16) {
        let end = at.saturating_add(len.into());
        if flags & (WRITE | INDIRECT) == WRITE && end <= MEMORY as u64 {
            self.offered.insert((at, end));
        }
    }

    /// Compares a part of the memory with what it was. The device alone has done something since.
    fn compare(&mut self, start: usize, end: usize) -> Vec<usize> {
        self.memory.read(start as u64, &mut self.now[start..end]).expect("its memory");
        if self.now[start..end] == self.seen[start..end] {
            return Vec::new();
        }
        let changed: Vec<usize> = (start..end).filter(|&at| self.now[at] != self.seen[at]).collect();
        self.seen[start..end].copy_from_slice(&self.now[start..end]);
        changed
    }

    /// Looks at what the device has done since the last look.
    fn look(&mut self) {
        let within =
            |all: &BTreeSet<(u64, u64)>, at: usize| all.iter().any(|&(start, end)| (start..end).contains(&(at as u64)));
        let mut changed: Vec<usize> = WATCHED.into_iter().flat_map(|(start, end)| self.compare(start, end)).collect();
        changed.retain(|&at| !within(&self.used, at));
        let given: &[u8] = match self.fills.last() {
            Some(fill) if self.is_fresh => &fill.bytes,
            _ => &[],
        };
        assert!(changed.len() <= given.len(), "{} bytes were written, {} were given", changed.len(), given.len());
        for &at in &changed {
            assert!(within(&self.offered, at), "{at:#x} was written, and no descriptor offers it");
            assert!(given.contains(&self.seen[at]), "{at:#x} has a byte that was not given");
        }
        if let Some(fill) = self.fills.last_mut() {
            fill.went_to_hostile |= !changed.is_empty();
        }
        self.is_fresh = false;
        self.scan();
    }

    /// Looks at all of the memory. What was not watched has to be as at the begin of the run.
    fn look_everywhere(&mut self) {
        let mut start = 0;
        for (next, end) in WATCHED {
            let offered = std::mem::take(&mut self.offered);
            let wrong = self
                .compare(start, next)
                .into_iter()
                .find(|&at| !offered.iter().any(|&(start, end)| (start..end).contains(&(at as u64))));
            assert_eq!(wrong, None, "an address that was written, and that no descriptor has offered");
            self.offered = offered;
            start = end;
        }
    }
}

/// The source: the CPU, or nothing.
struct Watched {
    cpu: Cpu<Fake>,
    judge: Rc<RefCell<Judge>>,
}

impl Source for Watched {
    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        let mut judge = self.judge.borrow_mut();
        judge.look();
        assert!((1..=MAX_BYTES).contains(&bytes.len()), "a request of {} bytes", bytes.len());
        if let Some(left) = judge.dry.checked_sub(1) {
            judge.dry = left;
            bytes.fill(0xdd);
            return false;
        }
        assert!(self.cpu.fill(bytes), "the CPU always has bytes");
        let words = bytes.as_chunks::<8>().0;
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]), "the same word twice in a row: {bytes:x?}");
        judge.fills.push(Fill { bytes: bytes.to_vec(), went_to_hostile: false });
        judge.is_fresh = true;
        true
    }
}

/// A request of the orderly guest.
struct Request {
    id: u16,
    area: u64,
    /// Offset and length of its buffers.
    buffers: Vec<(usize, usize)>,
}

/// The guest that keeps the rules.
struct Orderly {
    memory: GuestMemory,
    shared: &'static Shared,
    queue: DriverQueue,
    features: Features,
    pending: VecDeque<Request>,
    next: u64,
    /// The source's fills before this one are another request's.
    fills: usize,
}

impl Orderly {
    fn start(&mut self) {
        set_up_interrupts(&self.shared.msix, 0x60..0x62);
        self.queue = DriverQueue::new(&self.memory, 0, self.shared.max_queue_size(), self.features);
        self.pending.clear();
        assert!(self.shared.configure_queue(0, &self.queue.config), "the device is idle");
        assert!(self.shared.activate(self.features.bits()), "the features are offered");
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        if self.pending.len() >= PENDING {
            return;
        }
        let area = BUFFERS + self.next % AREAS * AREA as u64;
        self.next += 1;
        self.memory.write(area, &[UNTOUCHED; AREA]).expect("in its memory");
        let (mut buffers, mut at) = (Vec::new(), 0);
        for _ in 0..1 + input.byte() % 3 {
            at += 1 + usize::from(input.byte()) % GAP;
            let len = 1 + input.within(0, 100) as usize;
            buffers.push((at, len));
            at += len;
        }
        let chain: Vec<_> = buffers.iter().map(|&(at, len)| (area + at as u64, len as u32, true)).collect();
        let id = self.queue.add(&chain).expect("the queue has room");
        if self.queue.kick_prepare() {
            self.shared.kick(0);
        }
        self.pending.push_back(Request { id, area, buffers });
    }

    /// Takes all answers.
    fn receive(&mut self, judge: &Judge) {
        while let Some((id, written)) = self.queue.take_used() {
            let Request { id: expected, area, buffers } = self.pending.pop_front().expect("a request that waits");
            assert_eq!(id, expected, "requests are answered in their order");
            let whole: usize = buffers.iter().map(|&(_, len)| len).sum();
            // A request that has waited gets its first buffer filled.
            let expected = [whole, buffers[0].1].map(|len| len.min(MAX_BYTES) as u32);
            assert!(expected.contains(&written), "{written} bytes, {expected:?} were expected");
            let mut found = vec![0; AREA];
            self.memory.read(area, &mut found).expect("in its memory");
            let mut got = Vec::new();
            for (at, len) in buffers {
                let len = len.min(written as usize - got.len());
                got.extend_from_slice(&found[at..at + len]);
                found[at..at + len].fill(UNTOUCHED);
            }
            assert!(found.iter().all(|&byte| byte == UNTOUCHED), "written outside of its buffers, or too much");
            let fill = (self.fills..judge.fills.len())
                .find(|&n| judge.fills[n].bytes == got && !judge.fills[n].went_to_hostile);
            self.fills = 1 + fill.expect("bytes of the source, for nobody else");
        }
    }
}

/// The engine with its clock.
struct Core {
    engine: Box<Engine<Entropy<Watched>, PerDevice, &'static Recorder>>,
    interrupts: &'static Recorder,
    judge: Rc<RefCell<Judge>>,
    limit: Limit,
    counters: [&'static EntropyCounters; 2],
    /// Bytes of each device's counter and the time when it was attached.
    since: [(u64, u64); 2],
    now: u64,
}

impl Core {
    /// Lets `ticks` of time go by, and the engine make a turn.
    fn turn(&mut self, ticks: u64) {
        self.now += ticks;
        self.judge.borrow_mut().accept();
        self.engine.turn(self.now);
        if planted() {
            let judge = self.judge.borrow();
            judge.memory.write_u8(NOBODYS as u64, self.now as u8 | 1).expect("its memory");
        }
        self.judge.borrow_mut().look();
        self.interrupts.take();
        let Limit { ticks_per_byte, burst } = self.limit;
        for (counters, (bytes, begin)) in self.counters.iter().zip(self.since) {
            let got = counters.bytes.get() - bytes;
            let most = (self.now - begin).checked_div(ticks_per_byte).map_or(u64::MAX, |more| burst + more);
            assert!(got <= most, "{got} bytes in {} ticks, at most {most} were expected", self.now - begin);
        }
    }

    fn command(&mut self, command: Command<&'static EntropyCounters>) -> Reply {
        play::command(self.engine.control(), command, || self.turn(1))
    }
}

/// The guests and the engine.
struct World {
    core: Core,
    hostile: Hostile,
    orderly: Orderly,
    hardware: Rc<Cell<Hardware>>,
    requests: Requests,
    is_attached: bool,
}

impl World {
    /// `kind`: the rate, and whether the drivers take EVENT_IDX.
    fn new(kind: usize) -> Self {
        let shared = || -> &'static Shared { Box::leak(Box::new(Shared::new(device::config()))) };
        let devices = [shared(), shared()];
        let all = Features::from_bits_retain(devices[0].offered());
        let features = if kind < LIMITS.len() { all } else { all.difference(Features::EVENT_IDX) };
        let memory = memory::guest::testing::memory(0, MEMORY);
        let orderly = Orderly {
            queue: DriverQueue::new(&memory, 0, devices[ORDERLY].max_queue_size(), features),
            memory,
            shared: devices[ORDERLY],
            features,
            pending: VecDeque::new(),
            next: 0,
            fills: 0,
        };
        let hostile = Hostile::new(devices[HOSTILE], features);
        let judge = Rc::new(RefCell::new(Judge::new(hostile.memory.clone(), devices[HOSTILE])));
        let (hardware, limit) = (Rc::new(Cell::new(Hardware::default())), LIMITS[kind % LIMITS.len()]);
        let source = Watched { cpu: cpu(&hardware), judge: judge.clone() };
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        let core = Core {
            engine: Box::new(Engine::new(control, Entropy::new(source, limit), PerDevice::new(16), interrupts)),
            interrupts,
            judge,
            limit,
            counters: [Box::leak(Box::default()), Box::leak(Box::default())],
            since: [(0, 0); 2],
            now: 0,
        };
        Self { core, hostile, orderly, hardware, requests: Requests::Poll, is_attached: false }
    }

    fn detach(&mut self, slot: usize) {
        assert!(matches!(self.core.command(Command::Detach { slot }), Reply::Detached(_)), "nothing holds it up");
    }

    /// Attaches a device that begins anew.
    fn attach(&mut self, slot: usize) {
        let (shared, memory) = match slot {
            HOSTILE => (self.hostile.shared, self.hostile.memory.clone()),
            _ => (self.orderly.shared, self.orderly.memory.clone()),
        };
        shared.restart();
        if slot == HOSTILE {
            self.hostile.start()
        } else {
            self.orderly.start()
        }
        self.core.since[slot] = (self.core.counters[slot].bytes.get(), self.core.now);
        let attachment = Attachment {
            slot,
            number: slot,
            shared,
            memory,
            requests: self.requests,
            share: GuestWeight::of_guest(slot),
            config: self.core.counters[slot],
            state: None,
        };
        assert_eq!(self.core.command(Command::Attach(attachment)), Reply::Attached);
    }

    fn receive(&mut self) {
        self.orderly.receive(&self.core.judge.borrow());
    }
}

/// A source that begins anew.
fn cpu(hardware: &Rc<Cell<Hardware>>) -> Cpu<Fake> {
    Cpu::new(Fake { does: hardware.clone(), state: 0x9e37_79b9_7f4a_7c15 }, [1, 2, 3])
}

impl play::World for World {
    fn begin(&mut self, requests: Requests) {
        self.requests = requests;
        if self.is_attached {
            (HOSTILE..=ORDERLY).for_each(|slot| self.detach(slot));
        }
        self.hardware.set(Hardware { seed: true, random: true, ..Hardware::default() });
        self.core.engine.backend_mut().source_mut().cpu = cpu(&self.hardware);
        self.core.judge.borrow_mut().begin();
        self.orderly.fills = 0;
        (HOSTILE..=ORDERLY).for_each(|slot| self.attach(slot));
        self.is_attached = true;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..7 => {
                let Self { core, hostile, .. } = self;
                hostile.step(input, &mut || core.turn(1));
            }
            7 => self.core.judge.borrow_mut().dry = input.byte() % 16,
            8 | 9 => self.orderly.ask(input),
            10 => {
                let bits = input.byte();
                let [seed, random, fails, stuck] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
                self.hardware.set(Hardware { seed, random, fails, stuck });
            }
            11 => {
                let slot = usize::from(input.flag());
                self.detach(slot);
                self.attach(slot);
            }
            12 => {
                // Its driver is loaded anew. What it has asked for before is forgotten.
                self.orderly.shared.request_reset();
                (0..4).for_each(|_| self.core.turn(1));
                assert!(self.orderly.shared.reset_done(), "a reset is always done");
                let before = everything(&self.orderly.memory);
                self.core.judge.borrow_mut().dry = 0;
                (0..4).for_each(|_| self.core.turn(10_000));
                assert!(everything(&self.orderly.memory) == before, "memory is written after a reset");
                self.orderly.start();
            }
            13 => self.core.turn(input.within(0, 10_000)),
            _ => {
                (0..=input.byte() % 4).for_each(|_| self.core.turn(1));
                self.receive();
            }
        }
    }

    /// All requests of the orderly guest are answered, and nobody has done anything to it.
    fn check(&mut self) {
        self.core.judge.borrow_mut().dry = 0;
        for _ in 0..4 * PENDING {
            self.core.turn(MAX_BYTES as u64 * self.core.limit.ticks_per_byte + 1);
            self.receive();
        }
        assert!(self.orderly.pending.is_empty(), "{} requests without an answer", self.orderly.pending.len());
        assert!(!self.orderly.shared.needs_reset(), "the second guest keeps the rules");
        assert_eq!(self.orderly.shared.faults().map(|(_, n)| n).sum::<u64>(), 0, "the second guest keeps the rules");
        self.core.judge.borrow_mut().look_everywhere();
    }

    /// The hostile driver behaves now: its device works.
    fn settle(&mut self) {
        let Self { core, hostile, .. } = self;
        hostile.restart(&mut || core.turn(1));
        let at = Hostile::buffer(0);
        assert!(hostile.queue(0).add(&[(at, MAX_BYTES as u32, true)]).is_some(), "the queue is empty");
        hostile.shared.kick(0);
        (0..4).for_each(|_| core.turn(10_000));
        let (_, written) = hostile.queue(0).take_used().expect("after a reset it works again");
        let mut bytes = [0; MAX_BYTES];
        hostile.memory.read(at, &mut bytes).expect("in its memory");
        let judge = core.judge.borrow();
        let last = judge.fills.iter().rfind(|fill| fill.went_to_hostile).expect("it was filled");
        assert_eq!((written as usize, &bytes[..]), (MAX_BYTES, &last.bytes[..]), "after a reset it works again");
    }
}

/// The memory that the orderly guest's requests have.
fn everything(memory: &GuestMemory) -> Vec<u8> {
    let mut bytes = vec![0; AREA * AREAS as usize];
    memory.read(BUFFERS, &mut bytes).expect("in its memory");
    bytes
}

thread_local! {
    static WORLDS: RefCell<[Option<World>; 6]> = const { RefCell::new([const { None }; 6]) };
}

/// The target.
///
/// # Panics
/// The back-end is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = usize::from(input.byte() % 6);
    let requests = play::requests(&mut input);
    WORLDS.with_borrow_mut(|worlds| {
        let world = worlds[kind].get_or_insert_with(|| World::new(kind));
        play::play(world, requests, &mut input);
    });
}

crate::planted::tests!(random_bytes_go_only_where_they_were_asked_for, 128, 1..2000);
