//! The load whose instructions are counted: reads of 4 KiB from a RAM disk, in batches. The engine's part is one
//! function, so that a tool can count the instructions of that function only. `benches/read.rs` runs the load as a
//! process.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::sync::atomic::AtomicU8;

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
use crate::ram::{Ram, RamDisk};

/// The engine that is measured. As in the product, each call to a back-end goes through the multiplexer.
type Measured = Engine<Pair<Absent, Block<Ram>>, Chosen, &'static Recorder>;
type Config = Half<Infallible, Disk<&'static RamDisk>>;

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
}

/// The engine's work for one batch.
#[inline(never)]
fn measured(engine: &mut Measured, requests: u32) {
    let mut moved = 0;
    while moved < requests {
        moved += engine.turn(1);
    }
}

/// Reads [`REQUESTS`] blocks, and checks each. The memory is leaked.
///
/// # Panics
/// If a request is not answered as it must be.
pub fn run(load: Load) {
    let bytes: Vec<AtomicU8> = (0..256 * BYTES).map(|n| AtomicU8::new((n / BYTES) as u8)).collect();
    let disk: &RamDisk = Box::leak(Box::new(RamDisk::of_memory(HostMemory::new(bytes.leak()), false)));
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
    let mut engine = Box::new(Engine::new(control, Pair::new(Absent, Block::new(Ram::new())), schedule, interrupts));
    let counters: &BlockCounters = Box::leak(Box::default());
    let attachment = Attachment {
        slot: 3,
        number: 3,
        shared,
        memory: memory.clone(),
        requests: Requests::Poll,
        share: GuestWeight::of_guest(3),
        config: Half::Second(Disk { volume: disk, serial: [0; 20], counters }),
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
            let header = [&[0; 8][..], &(block * 8).to_le_bytes()].concat();
            memory.write(at, &header).expect("a header");
            memory.write(at + 16, &[0xaa]).expect("a status byte");
            let chain = [(at, 16, false), (at + 0x1000, BYTES as u32, true), (at + 16, 1, true)];
            assert!(queue.add(&chain).is_some(), "the queue has room");
        }
        measured(&mut engine, load.batch as u32);
        for n in 0..load.batch {
            assert_eq!(queue.take_used().map(|(_, used)| used), Some(BYTES as u32 + 1));
            let mut status = [0xaa];
            let mut data = [0; BYTES];
            let at = BUFFERS + n as u64 * STRIDE;
            memory.read(at + 16, &mut status).expect("a status byte");
            memory.read(at + 0x1000, &mut data).expect("data");
            assert_eq!(status, [0]);
            assert!(data.iter().all(|byte| *byte == (first + n) as u8), "block {}", first + n);
        }
    }
    assert_eq!(counters.reads.get(), REQUESTS as u64);
}
