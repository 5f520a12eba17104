//! Test support: an engine with the block back-end, guests with a disk, and a storage that completes when it is told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32};

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{GuestWeight, PerDevice};
use engine::testing::Recorder;
use memory::GuestMemory;
use memory::host::HostMemory;
use virtio::chain::Segment;
use virtio::config::{DeviceConfig, Features};
use virtio::fault::Fault;
use virtio::shared::Shared;
use virtio::testing::{BUFFER_STRIDE, DriverQueue, MEMORY, set_up_interrupts};

use crate::backend::{Block, Disk};
use crate::counters::BlockCounters;
use crate::device::{self, Options};
use crate::flushes::Record;
use crate::ram::{OVERLAY_BLOCK, Overlay, OverlayMemory, Ram, RamDisk};
use crate::storage::{Geometry, Operation, Request, Status, Storage, Submitted, Tag};

/// All features of the ring that the device offers, with split rings and with packed ones.
pub const SPLIT: Features = Features::all().difference(Features::RING_PACKED.union(Features::IN_ORDER));
pub const PACKED: Features = SPLIT.union(Features::RING_PACKED);
/// Ring features that drivers accept in tests: with split rings, with packed rings, and no optional ones.
pub const FORMS: [Features; 3] = [SPLIT, PACKED, Features::VERSION_1];

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
/// Address of the buffers. The tables of four queues are before it.
const BUFFERS: u64 = 0x20_0000;

/// What a status byte holds before the device writes it.
pub const UNTOUCHED: u8 = 0xaa;

/// A disk of memory.
pub fn memory_disk(bytes: usize) -> &'static RamDisk {
    Box::leak(Box::new(RamDisk::of_memory(host(bytes), false)))
}

fn host(bytes: usize) -> HostMemory {
    HostMemory::new((0..bytes).map(|_| AtomicU8::new(0)).collect::<Vec<_>>().leak())
}

/// A disk over a base, with an overlay of so many blocks.
pub fn overlay_disk(base: &'static [u8], blocks: usize) -> &'static RamDisk {
    let words = |n: usize| -> &'static [AtomicU32] { (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>().leak() };
    let memory = OverlayMemory {
        map: words(Overlay::map_entries(base.len())),
        returned: words(blocks),
        data: host(blocks * OVERLAY_BLOCK),
    };
    Box::leak(Box::new(RamDisk::of_overlay(Overlay::new(base, memory))))
}

/// A base of so many bytes. Byte `n` has a value that depends on `n` and on its block.
pub fn base(bytes: usize) -> &'static [u8] {
    (0..bytes).map(|n| (n % 251) as u8 ^ (n / 4096) as u8).collect::<Vec<_>>().leak()
}

/// A request that a [`Slow`] storage holds.
#[derive(Debug)]
pub struct Held {
    pub operation: Operation,
    pub first: u64,
    pub blocks: u32,
    segments: Vec<Segment>,
    memory: GuestMemory,
}

/// A storage with one volume, which completes requests when the test says so. Its contents are plain bytes.
pub struct Slow {
    pub geometry: Geometry,
    pub bytes: Vec<u8>,
    pub held: BTreeMap<u16, Held>,
    pub ended: Vec<(Tag, Status)>,
    /// Most requests at a time.
    pub depth: usize,
    /// Requests that are cancelled end at once.
    pub cancels: bool,
    pub cancelled: Vec<u16>,
}

impl Slow {
    pub fn new(block_bytes: u32, blocks: u64) -> Self {
        let geometry = Geometry {
            block_bytes,
            blocks,
            physical_bytes: 4096,
            read_only: false,
            volatile_cache: true,
            max_discard: 64,
            discard_bytes: 4096,
            max_zeroes: 32,
        };
        let bytes = vec![0; block_bytes as usize * blocks as usize];
        let (held, ended, cancelled) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { geometry, bytes, held, ended, depth: 1024, cancels: false, cancelled }
    }

    /// Ends the request with this tag: moves its data if it succeeds.
    pub fn end(&mut self, tag: u16, status: Status) {
        let Held { operation, first, blocks, segments, memory } = self.held.remove(&tag).expect("it is held");
        let block = self.geometry.block_bytes as usize;
        let (mut at, all) = (first as usize * block, blocks as usize * block);
        if status == Status::Ok {
            match operation {
                Operation::Discard | Operation::WriteZeroes { .. } => self.bytes[at..at + all].fill(0),
                Operation::Flush => {}
                Operation::Read | Operation::Write { .. } => {
                    assert_eq!(segments.iter().map(|s| s.len as usize).sum::<usize>(), all);
                    for segment in segments {
                        let part = &mut self.bytes[at..at + segment.len as usize];
                        if operation == Operation::Read {
                            memory.write(segment.gpa, part).unwrap();
                        } else {
                            memory.read(segment.gpa, part).unwrap();
                        }
                        at += segment.len as usize;
                    }
                }
            }
        }
        self.ended.push((Tag(tag), status));
    }

    pub fn tags(&self) -> Vec<u16> {
        self.held.keys().copied().collect()
    }
}

impl Storage for Slow {
    type Volume = ();

    fn are_flushed_together((): (), (): ()) -> bool {
        true
    }

    fn geometry(&self, (): ()) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, (): (), tag: Tag, request: &Request<'_>, _: u64) -> Submitted {
        if self.held.len() >= self.depth {
            return Submitted::Busy;
        }
        let segments = request.data.segments().collect();
        let &Request { operation, first, blocks, .. } = request;
        let held = Held { operation, first, blocks, segments, memory: request.memory.clone() };
        assert!(self.held.insert(tag.0, held).is_none(), "a tag is used once at a time");
        Submitted::Pending
    }

    fn poll(&mut self, _: u64, ended: &mut impl FnMut(Tag, Status)) {
        self.ended.drain(..).for_each(|(tag, status)| ended(tag, status));
    }

    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        self.cancelled.push(tag.0);
        self.cancels && self.held.remove(&tag.0).is_some()
    }
}

/// A request as the driver remembers it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: u16,
    /// Addresses of its buffers.
    pub at: Vec<u64>,
    pub status: u64,
}

/// A guest with a disk.
pub struct Guest {
    pub memory: GuestMemory,
    pub shared: &'static Shared,
    pub counters: &'static BlockCounters,
    pub queues: Vec<DriverQueue>,
    pub slot: usize,
    pub features: Features,
    /// What its disk keeps beyond its device.
    pub record: Option<&'static Record>,
    /// Added to the addresses of the data of its requests: of all buffers but the first and the last.
    pub data_apart: u64,
    next: u64,
}

impl Guest {
    /// Makes a guest whose driver has accepted `features` of the ring and everything of the device, and has set
    /// DRIVER_OK.
    pub fn new(slot: usize, geometry: &Geometry, queues: u16, features: Features) -> Self {
        let options = Options { queues, packed: true, writeback: true };
        let offered = device::config(geometry, &options);
        let features = features | Features::from_bits_retain(offered.features & 0xff_ffff);
        Self::with(slot, offered, features)
    }

    pub fn with(slot: usize, config: DeviceConfig, features: Features) -> Self {
        let mut guest = Self::idle(memory::guest::testing::memory(0, MEMORY), slot, config, features);
        guest.start();
        guest
    }

    /// The same, in this memory, without a driver yet: [`Guest::start`] is one.
    pub fn idle(memory: GuestMemory, slot: usize, config: DeviceConfig, features: Features) -> Self {
        Self {
            memory,
            shared: Box::leak(Box::new(Shared::new(config))),
            counters: Box::leak(Box::default()),
            queues: Vec::new(),
            slot,
            features,
            record: None,
            data_apart: 0,
            next: 0,
        }
    }

    /// Sets up its queues and interrupts, and sets DRIVER_OK.
    pub fn start(&mut self) {
        set_up_interrupts(&self.shared.msix, 0x40..0x48);
        self.queues.clear();
        for index in 0..self.shared.device().queues {
            self.queues.push(DriverQueue::new(&self.memory, index, self.shared.device().queue_size, self.features));
            self.set_up_queue(index);
        }
        assert!(self.shared.activate(self.features.bits()));
    }

    /// Sets up one queue. The driver forgets what it had offered before.
    pub fn set_up_queue(&mut self, index: u16) {
        let queue = DriverQueue::new(&self.memory, index, self.shared.device().queue_size, self.features);
        assert!(self.shared.configure_queue(index, &queue.config));
        self.queues[usize::from(index)] = queue;
    }

    /// Offers a chain of these buffers: contents, or a length for the device to write. Device-writable buffers are
    /// filled with [`UNTOUCHED`].
    pub fn offer(&mut self, queue: u16, buffers: &[Result<&[u8], usize>]) -> Sent {
        let mut at = BUFFERS + self.next % 31 * 16 * BUFFER_STRIDE;
        self.next += 1;
        let (mut chain, mut places) = (Vec::new(), Vec::new());
        for (n, buffer) in buffers.iter().enumerate() {
            let apart = if n == 0 || n + 1 == buffers.len() { 0 } else { self.data_apart };
            let filled;
            let (bytes, writable) = match *buffer {
                Ok(bytes) => (bytes, false),
                Err(len) => {
                    filled = vec![UNTOUCHED; len];
                    (&filled[..], true)
                }
            };
            self.memory.write(at + apart, bytes).expect("a buffer");
            chain.push((at + apart, bytes.len() as u32, writable));
            places.push(at + apart);
            at += bytes.len() as u64;
        }
        let status = at - 1;
        let id = self.queues[usize::from(queue)].add(&chain).expect("there is room");
        if self.queues[usize::from(queue)].kick_prepare() {
            self.shared.kick(queue);
        }
        Sent { id, at: places, status }
    }

    /// Offers a request of the usual form: a header, one buffer of data if there is any, a status byte.
    pub fn send(&mut self, kind: u32, sector: u64, data: Option<Result<&[u8], usize>>) -> Sent {
        self.send_on(0, kind, sector, data)
    }

    pub fn send_on(&mut self, queue: u16, kind: u32, sector: u64, data: Option<Result<&[u8], usize>>) -> Sent {
        let header = header(kind, sector);
        let buffers: Vec<_> = [Ok(&header[..])].into_iter().chain(data).chain([Err(1)]).collect();
        self.offer(queue, &buffers)
    }

    /// The status byte of a request.
    pub fn status(&self, sent: &Sent) -> u8 {
        self.bytes(sent.status, 1)[0]
    }

    /// Returns bytes of its memory.
    pub fn bytes(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(gpa, &mut bytes).expect("a buffer");
        bytes
    }

    /// Takes the next used request of queue 0: its id and the used length.
    pub fn used(&mut self) -> Option<(u16, u32)> {
        self.queues[0].take_used()
    }

    /// Returns how often it broke this rule.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.shared.faults().find(|(kind, _)| *kind == fault).map_or(0, |(_, count)| count)
    }

    /// The counters that are not 0.
    pub fn counted(&self) -> Vec<(&'static str, u64)> {
        self.counters.iter().filter(|(_, n)| *n != 0).collect()
    }
}

/// The header of a request.
pub fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0x5a; 4], &sector.to_le_bytes()].concat()
}

/// The range of a discard or of a request to write zeroes.
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// An engine with a storage, and the interrupts that it sends.
pub struct Bench<S: Storage> {
    pub engine: Box<Engine<Block<S>, PerDevice, &'static Recorder>>,
    pub interrupts: &'static Recorder,
    now: u64,
}

impl<S: Storage> Bench<S> {
    /// Makes an engine without devices.
    pub fn new(storage: S) -> Self {
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        let engine = Box::new(Engine::new(control, Block::new(storage), PerDevice::new(64), interrupts));
        Self { engine, interrupts, now: 0 }
    }

    /// Attaches a guest's device to its slot, and runs until its queues are armed.
    pub fn attach(&mut self, guest: &Guest, volume: S::Volume) -> Reply {
        let mut serial = [0; 20];
        serial[..6].copy_from_slice(b"disk-7");
        let reply = self.command(Command::Attach(Attachment {
            slot: guest.slot,
            number: guest.slot,
            shared: guest.shared,
            memory: guest.memory.clone(),
            requests: Requests::Notify,
            share: GuestWeight::of_guest(guest.slot),
            config: Disk { volume, serial, counters: guest.counters, record: guest.record },
            state: None,
        }));
        self.turn();
        self.turn();
        reply
    }

    /// Gives the engine a command. Returns its reply.
    pub fn command(&mut self, command: Command<Disk<S::Volume>>) -> Reply {
        let control = self.engine.control();
        assert!(control.submit(command).is_ok(), "the slot is free");
        self.turn();
        control.reply().expect("answered within a turn")
    }

    /// Runs a turn. Returns how many requests were moved.
    pub fn turn(&mut self) -> u32 {
        self.turn_at(self.now + 1)
    }

    /// Runs a turn at this time. Time does not go back.
    pub fn turn_at(&mut self, now: u64) -> u32 {
        self.now = now;
        self.engine.turn(now)
    }

    pub fn storage(&mut self) -> &mut S {
        self.engine.backend_mut().storage_mut()
    }

    /// Sends a request and runs until it is used. Returns its status and its used length.
    pub fn ask(&mut self, guest: &mut Guest, sent: &Sent) -> (u8, u32) {
        for _ in 0..100 {
            self.turn();
            if let Some((id, used)) = guest.used() {
                assert_eq!(id, sent.id);
                return (guest.status(sent), used);
            }
        }
        panic!("the request was not answered");
    }
}

/// A guest whose memory is two regions, one behind the other. The data of its requests are in the second one, and
/// everything else in the first one.
pub fn in_two_regions(geometry: &Geometry, features: Features) -> Guest {
    let memory = memory::guest::testing::regions(&[(0, MEMORY), (MEMORY as u64, MEMORY)]);
    let options = Options { queues: 1, packed: true, writeback: true };
    let offered = device::config(geometry, &options);
    let features = features | Features::from_bits_retain(offered.features & 0xff_ffff);
    let mut guest = Guest::idle(memory, 3, offered, features);
    guest.data_apart = MEMORY as u64;
    guest.start();
    guest
}

/// A guest with a RAM disk, attached.
pub fn with_disk(disk: &'static RamDisk, features: Features) -> (Guest, Bench<Ram>) {
    let guest = Guest::new(3, &disk.geometry(), 1, features);
    let mut bench = Bench::new(Ram::new());
    assert_eq!(bench.attach(&guest, disk), Reply::Attached);
    (guest, bench)
}

/// A guest over a slow storage, attached.
pub fn with_slow(storage: Slow, queues: u16, features: Features) -> (Guest, Bench<Slow>) {
    let guest = Guest::new(3, &storage.geometry, queues, features);
    let mut bench = Bench::new(storage);
    assert_eq!(bench.attach(&guest, ()), Reply::Attached);
    (guest, bench)
}
