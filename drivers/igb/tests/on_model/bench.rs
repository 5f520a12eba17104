//! A driver on a model, with a clock and memory.

use std::cell::RefCell;
use std::rc::Rc;

use igb::dma::DmaBuffer;
use igb::nic::{Link, Nic, Offload, Outcome, Outgoing, Refused, Segment};
use igb::registers::Registers;
use igb::{Config, Device, Filter, Igb, Kind, Status};
use igb_model::Model;
use igb_model::made;
use igb_model::memory::{Access, Block, Memory};

/// The model's registers, as the driver sees them.
pub struct Port(pub Rc<RefCell<Model>>);

impl Registers for Port {
    fn read(&self, offset: u32) -> u32 {
        self.0.borrow_mut().read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.0.borrow_mut().write(offset, value);
    }
}

/// A driver on a model.
pub struct Bench {
    pub model: Rc<RefCell<Model>>,
    pub memory: Memory,
    /// The driver's own memory.
    #[allow(dead_code, reason = "a fuzz target takes it away")]
    pub own: Block,
    pub nic: Igb<Port, u64>,
    pub now: u64,
}

pub const KINDS: [Kind; 2] = [Kind::I82576, Kind::I350];

/// A small configuration, so that rings wrap soon.
pub fn small() -> Config {
    Config { receive_descriptors: 64, transmit_descriptors: 64, ..Config::default() }
}

impl Bench {
    /// A bench with the cable in. The driver has not begun to bring the device up.
    pub fn cold(kind: Kind, config: Config) -> Self {
        Self::with(kind, 0, config, Filter { broadcast: true, ..Filter::default() })
    }

    pub fn with(kind: Kind, port: u8, config: Config, filter: Filter) -> Self {
        let needed = config.memory();
        let memory = Memory::new(needed + (16 << 20));
        let own = memory.granted(needed, 128);
        let device = match kind {
            Kind::I82576 => igb_model::Kind::I82576,
            Kind::I350 => igb_model::Kind::I350,
        };
        let mut model = Model::new(device, port, Box::new(memory.clone()));
        model.set_cable(true);
        let model = Rc::new(RefCell::new(model));
        // SAFETY: the block was just allocated, and only the driver has it. The bench keeps the memory as long as the
        // driver.
        let buffer = unsafe { DmaBuffer::new(own.host, own.bus, own.len) };
        let nic = Igb::new(Port(model.clone()), kind, buffer, config, filter).expect("a good configuration");
        Self { model, memory, own, nic, now: 20_000 }
    }

    /// A bench with a running device and a link.
    pub fn up(kind: Kind, config: Config) -> Self {
        let mut bench = Self::cold(kind, config);
        bench.until_up();
        bench
    }

    pub fn until_up(&mut self) {
        self.until(|b| b.nic.status() == Status::Running && b.nic.link() == Link::Up(1_000) && b.nic.is_settled());
    }

    /// Lets milliseconds pass until `done` returns true, 8 s at most.
    #[track_caller]
    pub fn until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..8_000 {
            if done(self) {
                return;
            }
            self.pass(1_000);
        }
        panic!("not within 8 s: {:?}, {:?}", self.nic.status(), self.nic.link());
    }

    /// Lets time pass; then the device and the driver's service run.
    pub fn pass(&mut self, microseconds: u64) {
        self.now += microseconds;
        self.model.borrow_mut().advance(microseconds);
        self.run();
        self.nic.service(self.now);
    }

    pub fn run(&mut self) {
        self.model.borrow_mut().run();
    }

    pub fn deliver(&mut self, frame: &[u8]) {
        self.model.borrow_mut().deliver(frame);
    }

    /// Takes all frames.
    pub fn received(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.nic.receive(0, u32::MAX, |f| frames.push(f.pieces.concat()));
        frames
    }

    /// Puts bytes into memory that the device may only read. Returns them as a segment.
    pub fn payload(&mut self, bytes: &[u8]) -> Segment {
        let block = self.memory.allocate(bytes.len(), 1);
        self.memory.fill(block.bus, bytes);
        self.memory.grant(block.bus, bytes.len(), Access::Read);
        // SAFETY: the block is test data, and nothing frees it.
        unsafe { Segment::new(block.bus, bytes.len() as u16) }
    }

    pub fn send(&mut self, header: &[u8], segments: &[Segment], token: u64) -> Result<(), Refused> {
        self.send_with(header, segments, Offload::NOTHING, token)
    }

    pub fn send_with(
        &mut self,
        header: &[u8],
        segments: &[Segment],
        offload: Offload,
        token: u64,
    ) -> Result<(), Refused> {
        self.nic.transmit(0, &Outgoing { header, segments, offload }, token).map_err(|(why, back)| {
            assert_eq!(back, token);
            why
        })
    }

    pub fn reclaim(&mut self) -> Vec<(u64, Outcome)> {
        let mut done = Vec::new();
        self.nic.reclaim(0, |token, outcome| done.push((token, outcome)));
        done
    }

    /// Flushes, lets the device work, and returns all frames that it sent.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        self.nic.flush(0);
        self.run();
        core::iter::from_fn(|| self.model.borrow_mut().take_sent()).collect()
    }

    /// Checks that the model has no diagnostic.
    #[track_caller]
    pub fn clean(&self) {
        assert_eq!(self.model.borrow_mut().take_diagnostics(), []);
    }
}

/// A TCP or UDP packet by IPv4 to the device, with correct checksums. With `partial`, the transport's checksum is the partial
/// one that a virtio driver leaves there.
pub fn packet(tcp: bool, payload: &[u8], partial: bool) -> Vec<u8> {
    made::packet(true, tcp, (1, 2), payload, partial)
}
