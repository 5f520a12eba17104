//! The load whose instructions are counted: reads or writes of 4 KiB of a RAM disk, in batches. The engine's part is one
//! function, so that a tool can count the instructions of that function only. `benches/read.rs` runs the load as a
//! process.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::sync::atomic::{AtomicU8, Ordering};

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::pair::{Half, Pair};
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, GuestWeight, Limits};
use engine::testing::{Absent, Recorder};
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
type Measured = Engine<Pair<Absent, Block<Storages>>, Chosen, &'static Recorder>;
type Storages = pair::Pair<Ram, Other>;
type Config = Half<Infallible, Disk<Either<&'static RamDisk, ()>>>;

/// The second storage, which no request is for.
struct Other;

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

    fn cancel(&mut self, _: Tag) -> bool {
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

/// Which requests are made, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests that are offered together, a power of two up to 64.
    pub batch: usize,
    /// The ring is packed.
    pub packed: bool,
    /// They are writes.
    pub write: bool,
}

/// The engine's work for one batch.
#[inline(never)]
fn measured(engine: &mut Measured, requests: u32) {
    let mut moved = 0;
    while moved < requests {
        moved += engine.turn(1);
    }
}

/// Reads or writes [`REQUESTS`] blocks, and checks each. The memory is leaked.
///
/// # Panics
/// If a request is not answered as it must be.
pub fn run(load: Load) {
    let bytes: Vec<AtomicU8> = (0..256 * BYTES).map(|n| AtomicU8::new((n / BYTES) as u8)).collect();
    let bytes: &'static [AtomicU8] = bytes.leak();
    let disk: &RamDisk = Box::leak(Box::new(RamDisk::of_memory(HostMemory::new(bytes), false)));
    let offered = device::config(&disk.geometry(), &Options { queues: 1, packed: true, writeback: true });
    let mut features = Features::from_bits_retain(offered.features);
    features.set(Features::RING_PACKED, load.packed);
    let memory = memory::guest::testing::memory(0, MEMORY);
    let shared: &Shared = Box::leak(Box::new(Shared::new(offered)));
    set_up_interrupts(&shared.msix, 0x40..0x48);
    let mut queue = DriverQueue::new(&memory, 0, offered.queue_size, features);
    assert!(shared.configure_queue(0, &queue.config) && shared.activate(features.bits()), "the device is idle");

    let control: &Control<Config> = Box::leak(Box::default());
    let interrupts: &Recorder = Box::leak(Box::default());
    let limits = Limits { requests: 256, bytes: 256 << 10, quantum: 1 << 40, least: 16, stall: 1 << 40 };
    let schedule = Chosen::Fine(Fine::new(limits));
    let storages = pair::Pair::new(Ram::new(), Other);
    let mut engine = Box::new(Engine::new(control, Pair::new(Absent, Block::new(storages)), schedule, interrupts));
    let counters: &BlockCounters = Box::leak(Box::default());
    let attachment = Attachment {
        slot: 3,
        number: 3,
        shared,
        memory: memory.clone(),
        requests: Requests::Poll,
        share: GuestWeight::of_guest(3),
        config: Half::Second(Disk { volume: Either::First(disk), serial: [0; 20], counters }),
        state: None,
    };
    assert!(control.submit(Command::Attach(attachment)).is_ok(), "the slot is free");
    engine.turn(0);
    assert_eq!(control.reply(), Some(Reply::Attached));
    engine.turn(1);

    for first in (0..REQUESTS).step_by(load.batch) {
        for n in 0..load.batch {
            let block = (first + n) as u64 % 256;
            let at = BUFFERS + n as u64 * STRIDE;
            let header = [&u64::from(load.write).to_le_bytes()[..], &(block * 8).to_le_bytes()].concat();
            memory.write(at, &header).expect("a header");
            memory.write(at + 16, &[0xaa]).expect("a status byte");
            if load.write {
                memory.write(at + 0x1000, &[block as u8 ^ 0x55; BYTES]).expect("data");
            }
            let chain = [(at, 16, false), (at + 0x1000, BYTES as u32, !load.write), (at + 16, 1, true)];
            assert!(queue.add(&chain).is_some(), "the queue has room");
        }
        measured(&mut engine, load.batch as u32);
        for n in 0..load.batch {
            let written = if load.write { 1 } else { BYTES as u32 + 1 };
            assert_eq!(queue.take_used().map(|(_, used)| used), Some(written));
            let mut status = [0xaa];
            let mut data = [0; BYTES];
            let (at, block) = (BUFFERS + n as u64 * STRIDE, (first + n) % 256);
            memory.read(at + 16, &mut status).expect("a status byte");
            memory.read(at + 0x1000, &mut data).expect("data");
            assert_eq!(status, [0]);
            assert!(data.iter().all(|byte| *byte == block as u8 ^ if load.write { 0x55 } else { 0 }), "block {block}");
            if load.write {
                let there = &bytes[block * BYTES..][..BYTES];
                assert!(there.iter().zip(data).all(|(there, byte)| there.load(Ordering::Relaxed) == byte));
            }
        }
    }
    let counter = if load.write { &counters.writes } else { &counters.reads };
    assert_eq!(counter.get(), REQUESTS as u64);
}
