//! The load whose instructions are counted: reads or writes of 4 KiB, in batches. The engine's part is one function, so
//! that a tool can count the instructions of that function only. `benches/read.rs` runs the load on a RAM disk as a
//! process, `benches/nvme.rs` on an NVMe namespace.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::sync::atomic::{AtomicU8, Ordering};

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::pair::{Half, Pair};
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, GuestWeight, Limits};
use engine::testing::{Absent, Recorder};
use memory::GuestMemory;
use memory::host::HostMemory;
use virtio::config::Features;
use virtio::shared::Shared;
use virtio::testing::{DriverQueue, MEMORY, set_up_interrupts};

use crate::backend::{Block, Disk};
use crate::counters::BlockCounters;
use crate::device::{self, Options};
use crate::pair::{self, Either};
use crate::ram::{Ram, RamDisk};
use crate::storage::{Geometry, Request, Status, Storage, Submitted, Tag};

/// The engine that is measured. As in the product, each call to a back-end goes through a multiplexer, and each call to
/// a storage too.
type Measured<S> = Engine<Pair<Absent, Block<S>>, Chosen, &'static Recorder>;
type Config<V> = Half<Infallible, Disk<V>>;

/// Another storage, which no request is for.
#[derive(Debug)]
pub struct Other;

impl Storage for Other {
    type Volume = ();

    fn geometry(&self, (): ()) -> Geometry {
        unreachable!("no device has it")
    }

    #[inline(never)]
    fn submit(&mut self, (): (), tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        // The compiler must not know that it does nothing.
        core::hint::black_box((tag, request, now));
        Submitted::Busy
    }

    fn poll(&mut self, _: u64, _: &mut impl FnMut(Tag, Status)) {}

    fn cancel(&mut self, (): (), _: Tag) -> bool {
        true
    }
}

/// Requests in a whole measurement.
pub const REQUESTS: usize = 4096;
/// Bytes of a request's data.
const BYTES: usize = 4096;
/// Address of the buffers. The indirect tables are before it.
const BUFFERS: u64 = 0x20_0000;
/// Bytes from one request's buffers to the next: header, status byte, and data from the next page on.
const STRIDE: u64 = 0x2000;
/// Address of another region of memory, in which data are as in the first one.
const OTHER_REGION: u64 = 1 << 32;

/// Which requests are made, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests that are offered together, a power of two up to 64.
    pub batch: usize,
    /// The ring is packed.
    pub packed: bool,
    /// They are writes.
    pub write: bool,
    /// The chains are in the ring's own table, and the data in another region of memory than the rest: libblkio's form.
    pub linked: bool,
}

impl Load {
    /// The load that the arguments `BATCH [packed] [write] [linked]` of a program name.
    ///
    /// # Panics
    /// If they name none.
    #[must_use]
    pub fn named(mut arguments: impl Iterator<Item = String>) -> Self {
        let batch = arguments.next().and_then(|n| n.parse().ok()).filter(|n| [1, 2, 4, 8, 16, 32, 64].contains(n));
        let batch = batch.expect("usage: BATCH [packed] [write] [linked], with a power of two up to 64");
        let words: Vec<_> = arguments.collect();
        let said = |word| words.iter().any(|said| said == word);
        Self { batch, packed: said("packed"), write: said("write"), linked: said("linked") }
    }
}

/// The engine's work for one batch: `requests` are moved.
#[inline(never)]
fn measured<S: Storage>(engine: &mut Measured<S>, requests: u32, now: u64) {
    let mut moved = 0;
    while moved < requests {
        moved += engine.turn(now);
    }
}

/// An engine with a storage, and a guest with a disk.
pub struct Stand<S: Storage + 'static> {
    engine: Box<Measured<S>>,
    memory: GuestMemory,
    queue: DriverQueue,
    counters: &'static BlockCounters,
    load: Load,
}

impl<S: Storage> Stand<S> {
    /// Attaches a disk to an engine. `memory` has at least [`MEMORY`] bytes from address 0 on. It is leaked.
    /// For [`Load::linked`] it has as many from 4 GiB on.
    ///
    /// # Panics
    /// If the engine refuses the device.
    pub fn new(storage: S, volume: S::Volume, memory: GuestMemory, load: Load) -> Self {
        let geometry = storage.geometry(volume);
        let offered = device::config(&geometry, &Options { queues: 1, packed: true, writeback: true });
        let mut features = Features::from_bits_retain(offered.features);
        features.set(Features::RING_PACKED, load.packed);
        features.set(Features::INDIRECT_DESC, !load.linked);
        let shared: &Shared = Box::leak(Box::new(Shared::new(offered)));
        set_up_interrupts(&shared.msix, 0x40..0x48);
        let queue = DriverQueue::new(&memory, 0, offered.queue_size, features);
        assert!(shared.configure_queue(0, &queue.config) && shared.activate(features.bits()), "the device is idle");

        let control: &Control<Config<S::Volume>> = Box::leak(Box::default());
        let interrupts: &Recorder = Box::leak(Box::default());
        let limits = Limits { requests: 256, bytes: 256 << 10, quantum: 1 << 40, least: 16, stall: 1 << 40 };
        let schedule = Chosen::Fine(Fine::new(limits));
        let mut engine = Box::new(Engine::new(control, Pair::new(Absent, Block::new(storage)), schedule, interrupts));
        let counters: &BlockCounters = Box::leak(Box::default());
        let attachment = Attachment {
            slot: 3,
            number: 3,
            shared,
            memory: memory.clone(),
            requests: Requests::Poll,
            share: GuestWeight::of_guest(3),
            config: Half::Second(Disk { volume, serial: [0; 20], counters, record: None }),
            state: None,
        };
        assert!(control.submit(Command::Attach(attachment)).is_ok(), "the slot is free");
        engine.turn(0);
        assert_eq!(control.reply(), Some(Reply::Attached));
        engine.turn(1);
        Self { engine, memory, queue, counters, load }
    }

    /// Address of the header of request `n`, with the status byte behind it.
    const fn at(n: usize) -> u64 {
        BUFFERS + (n % 128) as u64 * STRIDE
    }

    /// Address of the data of request `n`.
    const fn data_at(&self, n: usize) -> u64 {
        Self::at(n) + 0x1000 + if self.load.linked { OTHER_REGION } else { 0 }
    }

    /// Offers the requests from `first` on: a batch. Request `n` is for block `n % 256`. What is written has the bytes
    /// that `written` says.
    ///
    /// # Panics
    /// If the queue is full.
    pub fn offer(&mut self, first: usize) {
        for n in first..first + self.load.batch {
            let block = n % 256;
            let (at, data) = (Self::at(n), self.data_at(n));
            let header = [&u64::from(self.load.write).to_le_bytes()[..], &(block as u64 * 8).to_le_bytes()].concat();
            self.memory.write(at, &header).expect("a header");
            self.memory.write(at + 16, &[0xaa]).expect("a status byte");
            if self.load.write {
                self.memory.write(data, &[written(block); BYTES]).expect("data");
            }
            let chain = [(at, 16, false), (data, BYTES as u32, !self.load.write), (at + 16, 1, true)];
            assert!(self.queue.add(&chain).is_some(), "the queue has room");
        }
    }

    /// The engine works until `requests` are moved: taken and completed at once, or taken, or completed later.
    pub fn work(&mut self, requests: usize, now: u64) {
        measured(&mut self.engine, requests as u32, now);
    }

    /// Checks that a batch was answered. `content` says which bytes a block has.
    ///
    /// # Panics
    /// If it was not, or read data is wrong.
    pub fn check(&mut self, first: usize, content: impl Fn(usize) -> u8) {
        for n in first..first + self.load.batch {
            let used = if self.load.write { 1 } else { BYTES as u32 + 1 };
            assert_eq!(self.queue.take_used().map(|(_, used)| used), Some(used));
            let (at, block) = (Self::at(n), n % 256);
            let (mut status, mut data) = ([0xaa], [0; BYTES]);
            self.memory.read(at + 16, &mut status).expect("a status byte");
            self.memory.read(self.data_at(n), &mut data).expect("data");
            assert_eq!(status, [0]);
            let expected = if self.load.write { written(block) } else { content(block) };
            assert!(data.iter().all(|byte| *byte == expected), "block {block}");
        }
    }

    /// Checks how many requests were counted.
    ///
    /// # Panics
    /// If it is another number.
    pub fn counted(&self, requests: usize) {
        let counter = if self.load.write { &self.counters.writes } else { &self.counters.reads };
        assert_eq!(counter.get(), requests as u64);
    }
}

/// The bytes that are written to a block.
const fn written(block: usize) -> u8 {
    block as u8 ^ 0x55
}

/// Reads or writes [`REQUESTS`] blocks of a RAM disk, and checks each. The memory is leaked.
///
/// # Panics
/// If a request is not answered as it must be.
pub fn run(load: Load) {
    let bytes: Vec<AtomicU8> = (0..256 * BYTES).map(|n| AtomicU8::new((n / BYTES) as u8)).collect();
    let bytes: &'static [AtomicU8] = bytes.leak();
    let disk: &RamDisk = Box::leak(Box::new(RamDisk::of_memory(HostMemory::new(bytes), false)));
    let storages = pair::Pair::new(Ram::new(), Other);
    let memory = memory::guest::testing::regions(&[(0, MEMORY), (OTHER_REGION, MEMORY)]);
    let mut stand = Stand::new(storages, Either::First(disk), memory, load);
    for first in (0..REQUESTS).step_by(load.batch) {
        stand.offer(first);
        stand.work(load.batch, 1);
        stand.check(first, |block| block as u8);
        if load.write {
            for block in (first..first + load.batch).map(|n| n % 256) {
                let there = &bytes[block * BYTES..][..BYTES];
                assert!(there.iter().all(|byte| byte.load(Ordering::Relaxed) == written(block)));
            }
        }
    }
    stand.counted(REQUESTS);
}
