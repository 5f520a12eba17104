//! Disks of the machine beneath the guests of `block.rs`: NVMe namespaces on the model of a controller, and virtio disks on the
//! model of a device, with parts and emulated blocks over them as in the product.
//!
//! There are two of each. The first one is the hostile guest's alone and may fail in any way. The second one keeps the rules,
//! and only completes late and in another order. The orderly guest has a part of it. Blocks around that part are nobody's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::emulate::{BOUNCE_BYTES, Emulate, Emulated, EmulationCounters};
use block::nvme::{AtStart, MAX_SEGMENTS, Namespace, Nvme};
use block::pair::{Either, Pair};
use block::part::{Part, Parts};
use block::virtio_disk::{VirtioDisk, VirtioDisks};
use memory::{GuestMemory, Region};
use nvme::dma::{PAGE, Segment};
use nvme::{Config, Controller, ControllerStatus, IoQueue};
use nvme_model::driver::{Bit, Port, Reach};
use nvme_model::memory::{Access, Block, Memory};
use virtio::testing::MEMORY;
use virtio_blk::VirtioBlk;
use virtio_drivers::transport::DeviceStatus;

use super::places::{BEFORE, BEHIND, DISK, HOSTILE, NOBODYS, ORDERLY};
use super::virtio_device::{Device, Lot, Pages};
use crate::input::Input;
use crate::orderly::SECTORS;

type VirtioPort = virtio_blk::testing::Port;
/// The storage over them.
pub type Disks = Emulate<Parts<Pair<Nvme<Port, Reach>, VirtioDisks<Pages, VirtioPort>>>>;
/// A guest's volume.
pub type Volume = Emulated<Part<Either<Namespace, VirtioDisk>>>;

/// Sectors between that part and the hostile guest's part of the same disk.
const BETWEEN: u64 = 16;
/// Most bytes of a request of the NVMe driver. The orderly guest's are shorter.
const MAX_BYTES: u32 = 16 << 10;
/// Microseconds that pass at a time while something has to end.
const LONG: u64 = 10_000;

/// Which disks the two guests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A namespace of a controller each, with blocks of 512 bytes.
    Namespaces,
    /// Two parts of a namespace with blocks of 4,096 bytes, shown as blocks of 512.
    OneNamespace,
    /// A virtio disk each. The hostile guest's has blocks of 512 bytes, the other one's are emulated.
    VirtioDisks,
    /// Two parts of a virtio disk with blocks of 512 bytes.
    OneVirtioDisk,
    /// A namespace with blocks of 4,096 bytes, as the hostile guest sees them, and a virtio disk with emulated blocks.
    Mixed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Namespaces, Self::OneNamespace, Self::VirtioDisks, Self::OneVirtioDisk, Self::Mixed];

    /// log2 of the bytes of a block of the two disks.
    const fn shifts(self) -> [u32; 2] {
        match self {
            Self::Namespaces | Self::OneVirtioDisk => [9, 9],
            Self::OneNamespace | Self::Mixed => [12, 12],
            Self::VirtioDisks => [9, 12],
        }
    }

    /// Whether the two disks are namespaces.
    const fn are_namespaces(self) -> [bool; 2] {
        match self {
            Self::Namespaces | Self::OneNamespace => [true; 2],
            Self::VirtioDisks | Self::OneVirtioDisk => [false; 2],
            Self::Mixed => [true, false],
        }
    }

    /// Whether both guests have parts of the second disk.
    const fn is_shared(self) -> bool {
        matches!(self, Self::OneNamespace | Self::OneVirtioDisk)
    }

    /// Sectors of the blocks that a discard of the orderly guest covers whole.
    pub const fn discard_unit(self) -> u64 {
        1 << (self.shifts()[ORDERLY] - 9)
    }
}

/// A controller and its model.
struct Controlled {
    model: Rc<RefCell<nvme_model::Model>>,
    controller: Controller<Port, Bit>,
    bit: Bit,
}

impl Controlled {
    /// A controller that runs, whose only namespace has blocks of `1 << shift` bytes. `wipe`: the blocks of the orderly guest's
    /// part are wiped as at the start of the machine.
    fn new(memory: &Memory, may_fail: bool, shift: u32, wipe: bool, now: u64) -> (Self, IoQueue<Port, Reach>) {
        let mut namespace = nvme_model::Namespace::new(1, shift, DISK >> shift);
        namespace.data.fill(NOBODYS);
        // The first one cannot write zeroes.
        let oncs = if may_fail { 0b0100 } else { 0b1100 };
        let device = nvme_model::Config { to: 0, shutdown_time: 1000, oncs, ..Default::default() };
        let model = Rc::new(RefCell::new(nvme_model::Model::new(device, vec![namespace], memory.clone())));
        let bit = Bit::default();
        let (mut controller, queues) =
            Controller::new(Port(model.clone()), bit.clone(), &mut Reach(memory.clone()), config(may_fail))
                .expect("a good configuration");
        let mut queue = queues.into_iter().next().expect("one queue");
        let clock = Cell::new(now);
        let mut later = || {
            clock.set(clock.get() + 1_000);
            work(&model, &bit, 1_000);
            clock.get()
        };
        while controller.status() != ControllerStatus::Running || !queue.is_open() {
            let now = later();
            controller.service(now);
            queue.poll(now, |_, _| {});
        }
        if wipe {
            let page = memory.granted(PAGE, PAGE);
            // SAFETY: it is memory of the model, which nobody else uses.
            let zeroes = unsafe { Segment::new(page.bus, PAGE as u32) };
            let mut start = AtStart::new(&mut controller, &mut queue, &mut later);
            let in_block = 1 << (shift - 9);
            assert_eq!(start.wipe(1, BEFORE / in_block, SECTORS / in_block, zeroes), Ok(()));
            let part = BEFORE as usize * 512..(BEFORE + SECTORS) as usize * 512;
            let data = &model.borrow().namespaces[0].data;
            let wrong = data.iter().enumerate().position(|(at, byte)| (*byte == 0) != part.contains(&at));
            assert_eq!(wrong, None, "the part is wiped, and nothing else");
        }
        (Self { model, controller, bit }, queue)
    }

    /// Time passes, then the device and the controller's owner work.
    fn pass(&mut self, microseconds: u64, now: u64) {
        work(&self.model, &self.bit, microseconds);
        self.controller.service(now);
    }

    /// A fault, or the end of all faults.
    fn fault(&mut self, which: u8, input: &mut Input<'_>) {
        let mut model = self.model.borrow_mut();
        let f = &mut model.faults;
        match which % 16 {
            0 => f.gone = true,
            1 => f.fatal = true,
            2 => f.never_stops = true,
            3 => f.hold = !f.hold,
            4 => f.reverse = !f.reverse,
            5 => f.lose = u32::from(input.byte() % 4),
            6 => f.double = u32::from(input.byte() % 4),
            7 => f.forge = u32::from(input.byte() % 4),
            8 => f.bad_phase = u32::from(input.byte() % 4),
            9 => f.refuse_abort = true,
            10 => f.admin_silent = true,
            // Internal error, read-only, aborted, invalid opcode.
            11 => f.io_status = vec![[0x006, 0x182, 0x007, 0x001][usize::from(input.byte() % 4)]],
            12 => {
                let shift = model.namespaces[0].shift;
                model.resize(1, input.within(1, (2 * DISK as u64) >> shift) as usize);
            }
            13 => {
                drop(model);
                self.controller.restart();
            }
            _ => *f = nvme_model::Faults::default(),
        }
    }
}

/// Time passes, then the device works, if it may master the bus.
fn work(model: &RefCell<nvme_model::Model>, bit: &Bit, microseconds: u64) {
    let mut model = model.borrow_mut();
    model.advance(microseconds);
    if bit.0.get() {
        model.run();
    }
}

/// The driver's configuration. A controller that may fail has little time, the other one as much as it needs.
fn config(may_fail: bool) -> Config {
    let usual = Config { depth: 16, max_bytes: MAX_BYTES, max_segments: MAX_SEGMENTS, ..Config::default() };
    if may_fail {
        Config { command_time: 100_000, abort_time: 60_000, admin_time: 100_000, drain_time: 50_000, ..usual }
    } else {
        Config { command_time: u64::MAX / 2, ..usual }
    }
}

/// The devices beneath.
pub struct Machine {
    kind: Kind,
    /// The memory that the controllers reach: first the guests', then that of the drivers of a run.
    memory: Memory,
    guests: [Block; 2],
    /// Bytes of the guests' memory.
    used: usize,
    nvme: Vec<Controlled>,
    virtio: Vec<Device>,
    /// Pages of the virtio devices' drivers.
    pages: Vec<Lot>,
    counters: [&'static EmulationCounters; 2],
}

impl Machine {
    /// Memory for the guests, and no devices yet.
    pub fn new(kind: Kind) -> Self {
        let memory = Memory::new(2 * MEMORY + (1 << 20) + BOUNCE_BYTES as usize + 2 * config(true).memory() as usize);
        let guests = [HOSTILE, ORDERLY].map(|_| memory.granted(MEMORY, PAGE));
        let used = memory.used();
        let counters = [HOSTILE, ORDERLY].map(|_| &*Box::leak(Box::default()));
        Self { kind, memory, guests, used, nvme: Vec::new(), virtio: Vec::new(), pages: Vec::new(), counters }
    }

    /// The memory of a guest.
    pub fn memory(&self, guest: usize) -> GuestMemory {
        guest_memory(&self.guests[guest])
    }

    /// Makes the devices anew, without faults, and the storage over them. The volumes have the same shapes each time. The
    /// storage before is not used any more. `wipe`: the orderly guest's part is wiped as at the start of the machine.
    pub fn start(&mut self, now: u64, wipe: bool) -> (Disks, [Volume; 2]) {
        self.nvme.clear();
        self.virtio.clear();
        Pages::give_back(std::mem::take(&mut self.pages));
        self.memory.rewind(self.used);
        let (shifts, namespaces) = (self.kind.shifts(), self.kind.are_namespaces());
        let (mut queues, mut drivers) = (Vec::new(), Vec::new());
        for disk in [HOSTILE, ORDERLY] {
            if namespaces[disk] {
                let (controlled, queue) = Controlled::new(&self.memory, disk == HOSTILE, shifts[disk], wipe, now);
                self.nvme.push(controlled);
                queues.push(queue);
            } else {
                let device = Device::new(shifts[disk], disk == ORDERLY);
                drivers.push(VirtioBlk::new(device.port()).expect("a good device"));
                self.virtio.push(device);
            }
        }
        self.pages = Pages::lent();
        let volumes = [HOSTILE, ORDERLY].map(|guest| self.volume(guest, &queues, &drivers));
        let bounce = self.memory.granted(BOUNCE_BYTES as usize, PAGE);
        let offset = bounce.bus.wrapping_sub(bounce.host.as_ptr().expose_provenance() as u64);
        let pair = Pair::new(Nvme::new(queues, 1, offset), VirtioDisks::new(drivers, 1));
        let disks = Emulate::new(Parts::new(pair), guest_memory(&bounce));
        (disks, volumes)
    }

    fn volume(
        &self,
        guest: usize,
        queues: &[IoQueue<Port, Reach>],
        drivers: &[VirtioBlk<Pages, VirtioPort>],
    ) -> Volume {
        let disk = if self.kind.is_shared() { ORDERLY } else { guest };
        let namespaces = self.kind.are_namespaces();
        let (whole, geometry) = if namespaces[disk] {
            let queue = &queues[disk];
            let (format, limits) = (queue.namespace(1).expect("there"), queue.limits(1).expect("there"));
            let geometry = block::nvme::geometry(&format, &limits, false, true).expect("a block size");
            (Either::First(Namespace { queue: disk, id: 1, geometry }), geometry)
        } else {
            let device = if namespaces[HOSTILE] { 0 } else { disk };
            let geometry = block::virtio_disk::geometry(drivers[device].shape(), false);
            (Either::Second(VirtioDisk { device, geometry }), geometry)
        };
        let in_block = 1 << (self.kind.shifts()[disk] - 9);
        let (first, blocks) = match guest {
            ORDERLY => (BEFORE / in_block, SECTORS / in_block),
            _ if self.kind.is_shared() => ((BEFORE + SECTORS + BETWEEN) / in_block, (BEHIND - BETWEEN) / in_block),
            _ => (0, geometry.blocks),
        };
        let part = Part::new(whole, geometry.blocks, first, blocks).expect("within the disk");
        let sees_blocks = guest == HOSTILE && self.kind == Kind::Mixed;
        Emulated { volume: part, counters: (!sees_blocks).then_some(self.counters[guest]) }
    }

    /// Does something with the contents of the orderly guest's part.
    pub fn orderly_part<T>(&self, f: impl FnOnce(&mut [u8]) -> T) -> T {
        self.second_disk(|disk| f(&mut disk[BEFORE as usize * 512..][..SECTORS as usize * 512]))
    }

    fn second_disk<T>(&self, f: impl FnOnce(&mut [u8]) -> T) -> T {
        match (self.kind.are_namespaces()[ORDERLY], self.nvme.last(), self.virtio.last()) {
            (true, Some(controlled), _) => f(&mut controlled.model.borrow_mut().namespaces[0].data),
            (_, _, Some(device)) => f(&mut device.model().disk),
            _ => panic!("the devices are made first"),
        }
    }

    /// Time passes, and the devices work.
    pub fn pass(&mut self, microseconds: u64, now: u64) {
        self.nvme.iter_mut().for_each(|controlled| controlled.pass(microseconds, now));
        self.virtio.iter_mut().for_each(Device::take);
    }

    /// Something happens to the devices. The second one keeps the rules.
    pub fn step(&mut self, input: &mut Input<'_>) {
        let (kind, which) = (input.byte() % 4, input.byte());
        match (kind, &mut self.nvme[..], &mut self.virtio[..]) {
            (0 | 1, [.., controlled], _) if self.kind.are_namespaces()[ORDERLY] => {
                let faults = &mut controlled.model.borrow_mut().faults;
                (faults.hold, faults.reverse) = (which & 1 != 0, which & 2 != 0);
            }
            (0 | 1, _, [.., device]) => device.answer(which.into(), 0),
            (_, [controlled, ..], _) => controlled.fault(which, input),
            (2, _, [device, _]) => {
                let status = [0, 0, 0, 1, 2, 0xff, 77][usize::from(input.byte() % 7)];
                device.answer(which.into(), status);
            }
            (_, _, [device, _]) => match which % 16 {
                // It answers what was not asked, or wants to be reset.
                0 => device.forge(input.wide() as u32),
                1 => device.model().status |= DeviceStatus::DEVICE_NEEDS_RESET,
                _ => device.end(),
            },
            _ => {}
        }
    }

    /// All that the devices have ends soon. Returns the microseconds that pass until a device that does not work is given up or
    /// has come closer to it.
    pub fn let_go(&mut self) -> u64 {
        for controlled in &mut self.nvme {
            controlled.model.borrow_mut().faults.hold = false;
        }
        self.virtio.iter_mut().for_each(Device::end);
        LONG
    }

    /// A guest's memory is not the devices' any more, or it is again. An access in between is told by [`Machine::check`].
    pub fn grant(&self, guest: usize, is_granted: bool) {
        let Block { bus, len, .. } = self.guests[guest];
        if is_granted {
            self.memory.grant(bus, len, Access::ReadWrite);
        } else {
            self.memory.revoke(bus, len);
        }
    }

    /// Nothing was done to blocks of nobody, and the drivers have kept the rules of the devices.
    pub fn check(&self) {
        let behind = if self.kind.is_shared() { BETWEEN } else { BEHIND };
        let end = (BEFORE + SECTORS) as usize * 512;
        for range in [0..BEFORE as usize * 512, end..end + behind as usize * 512] {
            let touched = self.second_disk(|disk| disk[range.clone()].iter().position(|byte| *byte != NOBODYS));
            assert_eq!(touched, None, "where blocks of nobody were written, in {range:?}");
        }
        for controlled in &self.nvme {
            let diagnostics = controlled.model.borrow_mut().take_diagnostics();
            assert!(diagnostics.is_empty(), "{diagnostics:?}");
        }
    }
}

/// A storage without volumes.
pub fn none() -> Disks {
    Emulate::new(
        Parts::new(Pair::new(Nvme::new(Vec::new(), 1, 0), VirtioDisks::new(Vec::new(), 1))),
        GuestMemory::new(),
    )
}

/// Memory of a guest, or what is used like it.
fn guest_memory(block: &Block) -> GuestMemory {
    let mut memory = GuestMemory::new();
    let region = Region { gpa: 0, size: block.len as u64, host: block.host.as_ptr() };
    // SAFETY: a world keeps the memory as long as its guests and its engine, and nobody forms references to it.
    unsafe { memory.add(region) }.expect("a region");
    memory
}
