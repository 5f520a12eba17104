//! The load that `cargo mk bench block --instructions` counts on an NVMe namespace: see `testing.rs`. The device is the
//! model of the tests; it works between the engine's turns. A turn completes a batch and submits the next. The layers of
//! storages are those of the product. Usage: `nvme BATCH [packed] [write]`.

#![allow(unsafe_code, reason = "gives a model memory")]

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use block::emulate::{Emulate, Emulated};
use block::nvme::{MAX_SEGMENTS, Namespace, Nvme, geometry};
use block::pair::{Either, Pair};
use block::part::{Part, Parts};
use block::ram::Ram;
use block::testing::{Load, Other, REQUESTS, Stand};
use memory::{GuestMemory, Region};
use nvme::dma::{Dma, DmaBuffer, PAGE};
use nvme::{Config, Controller, ControllerStatus};
use nvme_model::Model;
use nvme_model::driver::{Bit, Port, Reach};
use nvme_model::memory::Memory;
use virtio::testing::MEMORY;

/// Memory of which nothing is bounced.
#[derive(Clone)]
struct Direct(Reach);

// SAFETY: memory is that of `Reach`.
unsafe impl Dma for Direct {
    fn allocate(&mut self, pages: usize) -> Option<DmaBuffer> {
        self.0.allocate(pages)
    }

    unsafe fn read(&self, _: u64, _: NonNull<u8>, _: usize) {
        unreachable!("nothing is bounced")
    }

    unsafe fn write(&self, _: u64, _: NonNull<u8>, _: usize) {
        unreachable!("nothing is bounced")
    }
}

/// Blocks of the namespace. Block `n` has the bytes `n`.
const BLOCKS: usize = 256;

fn main() {
    let load = Load::named(std::env::args().skip(1));
    let batch = load.batch;

    let config = Config { depth: 256, max_segments: MAX_SEGMENTS, ..Config::default() };
    let memory = Memory::new((8 << 20) + MEMORY + config.memory() as usize);
    let mut namespace = nvme_model::Namespace::new(1, 12, BLOCKS);
    namespace.data = (0..BLOCKS * PAGE).map(|n| (n / PAGE) as u8).collect();
    let model = Rc::new(RefCell::new(Model::new(nvme_model::Config::default(), vec![namespace], memory.clone())));
    let (mut controller, mut queues) =
        Controller::new(Port(model.clone()), Bit::default(), &mut Direct(Reach(memory.clone())), config)
            .expect("a good configuration");
    let mut now = 1_000_000;
    while controller.status() != ControllerStatus::Running || !queues[0].is_open() {
        now += 1_000;
        model.borrow_mut().advance(1_000);
        model.borrow_mut().run();
        controller.service(now);
        queues[0].poll(now, |_, _| {});
    }
    let of_guest = memory.granted(MEMORY, PAGE);
    let mut guest = GuestMemory::new();
    let region = Region { gpa: 0, size: MEMORY as u64, host: of_guest.host.as_ptr() };
    // SAFETY: the model's memory lives as long as the process, and nobody forms references to it.
    unsafe { guest.add(region) }.expect("a region");
    let (format, limits) = (queues[0].namespace(1).expect("there"), queues[0].limits(1).expect("there"));
    let geometry = geometry(&format, &limits, false, controller.is_cache_on()).expect("a block size");
    let offset = of_guest.bus.wrapping_sub(of_guest.host.as_ptr().expose_provenance() as u64);
    let whole = Either::First(Namespace { queue: 0, id: 1, geometry });
    let part = Part::new(whole, geometry.blocks, 0, geometry.blocks).expect("all of it");
    let disks = Pair::new(Nvme::new(queues, 1, offset), Other);
    let storage = Pair::new(Ram::new(), Emulate::new(Parts::new(disks), GuestMemory::new()));
    let volume = Either::Second(Emulated { volume: part, counters: None });
    let mut stand = Stand::new(storage, volume, guest, load);

    stand.offer(0);
    stand.work(batch, now);
    for first in (batch..=REQUESTS).step_by(batch) {
        model.borrow_mut().run();
        let last = first == REQUESTS;
        if !last {
            stand.offer(first);
        }
        stand.work(if last { batch } else { 2 * batch }, now);
        stand.check(first - batch, |block| block as u8);
    }
    stand.counted(REQUESTS);
    assert_eq!(model.borrow_mut().take_diagnostics(), Vec::<String>::new());
    println!("{REQUESTS} requests");
}
