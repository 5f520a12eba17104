//! NVMe namespaces beneath a guest's disk, on the model of a controller.

#![allow(unsafe_code, reason = "gives a model memory")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::control::{Command, Reply};
use memory::{GuestMemory, Region};
use nvme::dma::{PAGE, Segment};
use nvme::{Config, Controller, ControllerStatus, IoQueue};
use nvme_model::Model;
use nvme_model::driver::{Bit, Port, Reach};
use nvme_model::memory::Memory;
use virtio::testing::MEMORY;

use super::support::{Bench, DISCARD, FLUSH, Guest, IN, IOERR, OK, OUT, SPLIT, WRITE_ZEROES, range};
use crate::device::{self, Options};
use crate::nvme::{AtStart, MAX_SEGMENTS, Namespace, Nvme, geometry};
use crate::part::{Part, Parts};

pub type Volumes = Parts<Nvme<Port, Reach>>;

/// A guest with a whole namespace.
pub struct Stand {
    pub model: Rc<RefCell<Model>>,
    pub controller: Controller<Port, Bit>,
    bit: Bit,
    pub bench: Bench<Volumes>,
    pub guest: Guest,
    /// The memory of the driver and of the guest, and the guest's part of it.
    pub memory: Memory,
    pub of_guest: nvme_model::memory::Block,
    volume: Part<Namespace>,
    now: u64,
}

/// Most bytes of a request of the driver.
pub const MAX_BYTES: u32 = 32 << 10;
/// Time for a command in microseconds. It is short, so that a test does not need many turns.
pub const COMMAND_TIME: u64 = 2_000_000;

impl Stand {
    /// A namespace of 4 MiB with blocks of `1 << shift` bytes, and a driver of ours in the guest.
    fn new(shift: u32) -> Self {
        let mut stand = Self::without_driver(shift);
        stand.guest.start();
        (0..2).for_each(|_| _ = stand.bench.turn());
        stand
    }

    /// The same. Nothing in the guest drives its device yet.
    pub fn without_driver(shift: u32) -> Self {
        let config = Config {
            depth: 16,
            max_bytes: MAX_BYTES,
            max_segments: MAX_SEGMENTS,
            command_time: COMMAND_TIME,
            abort_time: COMMAND_TIME / 4,
            ..Config::default()
        };
        let memory = Memory::new((8 << 20) + MEMORY + config.memory() as usize);
        let namespaces = vec![nvme_model::Namespace::new(1, shift, (4 << 20) >> shift)];
        let model = Rc::new(RefCell::new(Model::new(nvme_model::Config::default(), namespaces, memory.clone())));
        let bit = Bit::default();
        let (mut controller, mut queues) =
            Controller::new(Port(model.clone()), bit.clone(), &mut Reach(memory.clone()), config)
                .expect("a good configuration");
        let mut now = 1_000_000;
        while controller.status() != ControllerStatus::Running || !queues[0].is_open() {
            now += 1_000;
            model.borrow_mut().advance(1_000);
            if bit.0.get() {
                model.borrow_mut().run();
            }
            controller.service(now);
            queues.iter_mut().for_each(|queue| {
                queue.poll(now, |_, _| {});
            });
        }
        let of_guest = memory.granted(MEMORY, PAGE);
        let mut guest_memory = GuestMemory::new();
        let region = Region { gpa: 0, size: MEMORY as u64, host: of_guest.host.as_ptr() };
        // SAFETY: the model's memory lives as long as the test, and nobody forms references to it.
        unsafe { guest_memory.add(region) }.expect("a region");
        let queue: &IoQueue<Port, Reach> = &queues[0];
        let (format, limits) = (queue.namespace(1).expect("there"), queue.limits(1).expect("there"));
        let geometry = geometry(&format, &limits, false, controller.is_cache_on()).expect("a block size");
        let offset = of_guest.bus.wrapping_sub(of_guest.host.as_ptr().expose_provenance() as u64);
        let options = Options { queues: 1, packed: false, writeback: true };
        let guest = Guest::idle(
            guest_memory,
            3,
            device::config(&geometry, &options),
            SPLIT.union(virtio::config::Features::from_bits_retain(
                device::config(&geometry, &options).features & 0xff_ffff,
            )),
        );
        let whole = Namespace { queue: 0, id: 1, geometry };
        let part = Part::new(whole, geometry.blocks, 0, geometry.blocks).expect("all of it");
        let mut bench = Bench::new(Parts::new(Nvme::new(queues, 1, offset)));
        assert_eq!(bench.attach(&guest, part), Reply::Attached);
        Self { model, controller, bit, bench, guest, memory, of_guest, volume: part, now }
    }

    /// The device, the controller's owner and the engine work for a millisecond.
    pub fn turn(&mut self) {
        self.now += 1_000;
        self.model.borrow_mut().advance(1_000);
        if self.bit.0.get() {
            self.model.borrow_mut().run();
        }
        self.controller.service(self.now);
        self.bench.turn_at(self.now);
    }

    /// Sends a request and runs until it is used. Returns its status and the addresses of its buffers.
    pub fn ask(&mut self, kind: u32, sector: u64, data: Option<Result<&[u8], usize>>) -> (u8, Vec<u64>) {
        let sent = self.guest.send(kind, sector, data);
        for _ in 0..1_000 {
            self.turn();
            if let Some((id, _)) = self.guest.used() {
                assert_eq!(id, sent.id);
                return (self.guest.status(&sent), sent.at);
            }
        }
        panic!("the request was not answered");
    }

    pub fn clean(&self) {
        assert_eq!(self.model.borrow_mut().take_diagnostics(), Vec::<String>::new());
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(13) ^ (i >> 8) as u8).collect()
}

#[test]
fn what_a_guest_writes_is_on_the_namespace_and_is_read_again() {
    for shift in [9, 12] {
        let mut stand = Stand::new(shift);
        let data = pattern(16 << 10);
        assert_eq!(stand.ask(OUT, 64, Some(Ok(&data))).0, OK);
        assert!(stand.model.borrow().namespaces[0].data[64 * 512..][..data.len()] == data);
        let (status, at) = stand.ask(IN, 64, Some(Err(data.len())));
        assert!(status == OK && stand.guest.bytes(at[1], data.len()) == data);
        assert_eq!(stand.ask(FLUSH, 0, None).0, OK);
        assert_eq!(stand.model.borrow().flushes, 1);
        assert_eq!(stand.ask(WRITE_ZEROES, 0, Some(Ok(&range(64, 8, 0)))).0, OK);
        assert!(stand.model.borrow().namespaces[0].data[64 * 512..][..4096].iter().all(|byte| *byte == 0));
        assert_eq!(stand.ask(DISCARD, 0, Some(Ok(&range(64, 32, 0)))).0, OK);
        stand.clean();
    }
}

#[test]
fn a_request_longer_than_the_driver_takes_is_one_request_for_the_guest() {
    let mut stand = Stand::new(9);
    let data = pattern(5 * MAX_BYTES as usize / 2);
    assert_eq!(stand.ask(OUT, 7, Some(Ok(&data))).0, OK);
    assert!(stand.model.borrow().namespaces[0].data[7 * 512..][..data.len()] == data);
    let (status, at) = stand.ask(IN, 7, Some(Err(data.len())));
    assert!(status == OK && stand.guest.bytes(at[1], data.len()) == data);
    let counted = stand.guest.counted();
    assert!(counted.contains(&("reads", 1)) && counted.contains(&("writes", 1)), "{counted:?}");
    stand.clean();
}

#[test]
fn an_order_of_the_controller_is_carried_out_with_no_request_in_flight() {
    let mut stand = Stand::new(9);
    stand.controller.stop(stand.now);
    for _ in 0..1_000 {
        stand.turn();
    }
    assert_eq!(stand.controller.status(), ControllerStatus::Stopped);
    assert_eq!(stand.ask(IN, 0, Some(Err(512))).0, IOERR);
}

#[test]
fn a_device_is_given_back_only_when_the_controller_has_let_go_of_its_buffers() {
    for blocks in [1, 5 * MAX_BYTES as usize / 1024] {
        let mut stand = Stand::new(9);
        stand.guest.send(IN, 0, Some(Err(blocks * 512)));
        stand.bench.turn();
        for _ in 0..10 {
            let reply = stand.bench.command(Command::Detach { slot: stand.guest.slot });
            assert_eq!(reply, Reply::Detaching, "the device still has the command");
        }
        for _ in 0..100 {
            stand.turn();
        }
        let reply = stand.bench.command(Command::Detach { slot: stand.guest.slot });
        assert!(matches!(reply, Reply::Detached(_)));
        stand.clean();
    }
}

/// The controller of a [`Stand`] before an engine has its queue.
fn at_start(
    config: nvme_model::Config,
    run: impl FnOnce(&mut AtStart<'_, Port, Reach, Bit>, &Memory),
) -> Rc<RefCell<Model>> {
    let driver = Config { depth: 16, max_bytes: MAX_BYTES, max_segments: MAX_SEGMENTS, ..Config::default() };
    let memory = Memory::new((8 << 20) + driver.memory() as usize);
    let namespaces = vec![nvme_model::Namespace::new(1, 9, 8192)];
    let model = Rc::new(RefCell::new(Model::new(config, namespaces, memory.clone())));
    let (mut controller, mut queues) =
        Controller::new(Port(model.clone()), Bit::default(), &mut Reach(memory.clone()), driver)
            .expect("a good configuration");
    let (clock, of_clock) = (Rc::new(Cell::new(1_000_000)), model.clone());
    let mut now = move || {
        clock.set(clock.get() + 1_000);
        of_clock.borrow_mut().advance(1_000);
        of_clock.borrow_mut().run();
        clock.get()
    };
    while controller.status() != ControllerStatus::Running || !queues[0].is_open() {
        let now = now();
        controller.service(now);
        queues[0].poll(now, |_, _| {});
    }
    run(&mut AtStart::new(&mut controller, &mut queues[0], &mut now), &memory);
    model
}

/// A page of zeroes for the device.
fn zeroes(memory: &Memory) -> Segment {
    let page = memory.granted(PAGE, PAGE);
    // SAFETY: the model's memory lives as long as the test.
    unsafe { Segment::new(page.bus, PAGE as u32) }
}

#[test]
fn wiped_blocks_read_as_zeroes_and_no_others_with_and_without_write_zeroes() {
    for can_write_zeroes in [true, false] {
        let oncs = if can_write_zeroes { 8 } else { 0 };
        let config = || nvme_model::Config { oncs, ..nvme_model::Config::default() };
        for (first, blocks) in [(0, 8192), (3, 1), (17, 5000), (8191, 1)] {
            let model = at_start(config(), |start, memory| {
                let page = memory.granted(PAGE, PAGE);
                memory.fill(page.bus, &[0x77; PAGE]);
                // SAFETY: the model's memory lives as long as the test.
                let noise = unsafe { Segment::new(page.bus, PAGE as u32) };
                for at in (0..8192).step_by(8) {
                    let write = nvme::Operation::Write { fua: false };
                    let ask = nvme::Request { id: 0, namespace: 1, operation: write, first: at, blocks: 8 };
                    start.ask(&ask, &[noise]).expect("a write");
                }
                assert_eq!(start.wipe(1, first, blocks, zeroes(memory)), Ok(()));
                assert_eq!(start.wipe(1, 8192, 1, zeroes(memory)), Err("it has fewer blocks".into()));
                assert_eq!(start.wipe(1, u64::MAX, 2, zeroes(memory)), Err("it has fewer blocks".into()));
                assert_eq!(start.wipe(2, 0, 1, zeroes(memory)), Err("there is no such namespace".into()));
            });
            let model = model.borrow();
            let bytes = &model.namespaces[0].data;
            let range = first as usize * 512..(first + blocks) as usize * 512;
            for (at, byte) in bytes.iter().enumerate() {
                assert_eq!(*byte, if range.contains(&at) { 0 } else { 0x77 }, "byte {at}, wiped: {range:?}");
            }
        }
    }
}

#[test]
fn a_driver_is_told_of_a_new_size_and_can_use_what_was_added() {
    for shift in [9, 12] {
        let mut stand = Stand::new(shift);
        let sectors = (4 << 20) / 512;
        let capacity = |stand: &Stand| stand.guest.shared.read_config(0, 8);
        assert_eq!(capacity(&stand), sectors);
        assert_eq!(stand.ask(OUT, sectors, Some(Ok(&[7; 4096]))).0, IOERR, "beyond the end");
        stand.guest.shared.set_config_vector(0);
        let generation = stand.guest.shared.config_generation();
        stand.bench.interrupts.take();
        for (size, status) in [(8 << 20, OK), (2 << 20, IOERR)] {
            stand.model.borrow_mut().resize(1, size >> shift);
            (0..100).for_each(|_| stand.turn());
            assert_eq!(capacity(&stand), size as u64 / 512);
            assert_eq!(stand.bench.interrupts.take(), [(3, 0x40)], "one interrupt for the configuration");
            assert_eq!(stand.ask(OUT, sectors, Some(Ok(&[7; 4096]))).0, status);
            stand.bench.interrupts.take();
        }
        assert_ne!(stand.guest.shared.config_generation(), generation);
        stand.clean();
    }
}

#[test]
fn a_size_that_changed_while_the_driver_was_away_is_what_the_next_one_finds() {
    let mut stand = Stand::new(9);
    stand.guest.shared.request_reset();
    stand.model.borrow_mut().resize(1, 100);
    (0..100).for_each(|_| stand.turn());
    assert!(stand.guest.shared.reset_done());
    stand.guest.start();
    stand.turn();
    assert_eq!(stand.guest.shared.read_config(0, 8), 100);
    stand.model.borrow_mut().resize(1, 200);
    (0..100).for_each(|_| stand.turn());
    assert_eq!((stand.guest.shared.read_config(0, 8), stand.ask(IN, 199, Some(Err(512))).0), (200, OK));
}

#[test]
fn a_new_life_shows_the_present_size_before_its_driver_is_done() {
    let mut stand = Stand::new(9);
    let capacity = |stand: &Stand| stand.guest.shared.read_config(0, 8);
    assert_eq!(capacity(&stand), (4 << 20) / 512);
    assert!(matches!(stand.bench.command(Command::Detach { slot: stand.guest.slot }), Reply::Detached(_)));
    stand.model.borrow_mut().resize(1, 100);
    (0..100).for_each(|_| stand.turn());
    stand.guest.shared.restart();
    assert_eq!(stand.bench.attach(&stand.guest, stand.volume), Reply::Attached);
    assert_eq!(capacity(&stand), 100, "firmware reads it before DRIVER_OK");
    stand.guest.start();
    stand.turn();
    assert_eq!((capacity(&stand), stand.ask(IN, 99, Some(Err(512))).0), (100, OK));
}
