//! Test support: an engine with the console back-end, and guests whose driver shakes hands as Linux's does.

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{GuestWeight, PerDevice};
use engine::testing::Recorder;
use memory::GuestMemory;
use virtio::config::{DeviceConfig, Features};
use virtio::fault::Fault;
use virtio::shared::Shared;
use virtio::state::DeviceState;
use virtio::testing::{DriverQueue, MEMORY, set_up_interrupts};

use crate::backend::{Config, Console};
use crate::bell::Bell;
use crate::device::{self, CONTROL_RECEIVE, CONTROL_TRANSMIT, MULTIPORT, receive_queue, transmit_queue};
use crate::message::{Message, event};
use crate::ports::{Overflow, Port, Ports};
use crate::wire::{ControlEnd, wire};

/// All features of the ring but packed rings, IN_ORDER and RING_RESET.
pub const SPLIT: Features =
    Features::all().difference(Features::RING_PACKED.union(Features::IN_ORDER).union(Features::RING_RESET));
/// The same with packed rings, which the device does not offer.
pub const PACKED: Features = SPLIT.union(Features::RING_PACKED);
/// The features that drivers accept in tests: with split rings, with packed rings, and no optional ones.
pub const FORMS: [Features; 3] = [SPLIT, PACKED, Features::VERSION_1];

/// Bytes of the rings of a port in tests.
pub const OUTPUT: usize = 64;
pub const INPUT: usize = 16;
/// Ticks that the console's output waits for room.
pub const PATIENCE: u64 = 10;

/// Buffers, apart from the rings and indirect tables of all queues.
const BUFFERS: u64 = 0x2c_0000;
const BUFFER: u64 = 0x1000;
const BUFFER_COUNT: u64 = 0xc0;

/// A guest with a console device, and the control core's ends of its ports.
pub struct Guest {
    pub memory: GuestMemory,
    pub shared: &'static Shared,
    pub ports: &'static Ports,
    pub ends: Vec<ControlEnd>,
    pub queues: Vec<DriverQueue>,
    pub slot: usize,
    features: u64,
    next: u64,
    /// Buffers that the driver posted, by queue, oldest first.
    posted: Vec<std::collections::VecDeque<u64>>,
}

impl Guest {
    /// Makes a guest with these named ports whose driver has set DRIVER_OK.
    pub fn new(slot: usize, features: Features, names: &[&str]) -> Self {
        Self::with(slot, features.bits() | MULTIPORT, names)
    }

    /// The same with all features given.
    pub fn with(slot: usize, features: u64, names: &[&str]) -> Self {
        let offered = device::config(1 + names.len());
        let config = DeviceConfig { features: offered.features | features, ..offered };
        let named = names.iter().map(|&name| Port::named(name.into(), Overflow::Wait));
        let mut guest = Self {
            memory: memory::guest::testing::memory(0, MEMORY),
            shared: Box::leak(Box::new(Shared::new(config))),
            ports: Box::leak(Box::new(Ports::new(Port::console(Overflow::DropAfter(PATIENCE)), named))),
            ends: Vec::new(),
            queues: Vec::new(),
            slot,
            features,
            next: 0,
            posted: Vec::new(),
        };
        guest.start();
        guest
    }

    /// Sets up its queues and interrupts, and sets DRIVER_OK. The driver forgets what it had offered before.
    pub fn start(&mut self) {
        set_up_interrupts(&self.shared.msix, 0x40..0x49);
        let config = self.shared.device();
        let features = Features::from_bits_retain(self.features);
        let count = if self.features & MULTIPORT == 0 { 2 } else { config.queues };
        self.queues = (0..count).map(|i| DriverQueue::new(&self.memory, i, config.queue_size, features)).collect();
        self.posted = vec![std::collections::VecDeque::new(); self.queues.len()];
        for (queue, driver) in (0..).zip(&self.queues) {
            assert!(self.shared.configure_queue(queue, &driver.config));
        }
        assert!(self.shared.activate(self.features));
    }

    fn buffer(&mut self) -> u64 {
        self.next += 1;
        BUFFERS + self.next % BUFFER_COUNT * BUFFER
    }

    /// Offers one request with these buffers (content or length of a device-writable one). Returns their addresses.
    pub fn offer(&mut self, queue: u16, buffers: &[Result<&[u8], u32>]) -> Vec<u64> {
        let mut request = Vec::new();
        for buffer in buffers {
            let at = self.buffer();
            request.push(match *buffer {
                Ok(bytes) => {
                    self.memory.write(at, bytes).expect("a buffer");
                    (at, bytes.len() as u32, false)
                }
                Err(len) => {
                    self.memory.zero(at, len.into()).expect("a buffer");
                    (at, len, true)
                }
            });
        }
        let driver = &mut self.queues[usize::from(queue)];
        driver.add(&request).expect("there is room");
        if driver.kick_prepare() {
            self.shared.kick(queue);
        }
        request.iter().map(|&(at, ..)| at).collect()
    }

    /// Sends output on a port.
    pub fn send(&mut self, port: usize, bytes: &[u8]) {
        self.offer(transmit_queue(port), &[Ok(bytes)]);
    }

    /// Sends a control message.
    pub fn tell(&mut self, id: u32, event: u16, value: u16) {
        self.offer(CONTROL_TRANSMIT, &[Ok(&Message { id, event, value }.encode())]);
    }

    /// Posts a buffer of `len` bytes for input or control messages.
    pub fn post(&mut self, queue: u16, len: u32) {
        let at = self.offer(queue, &[Err(len)])[0];
        self.posted[usize::from(queue)].push_back(at);
    }

    /// Posts a buffer for input to a port.
    pub fn post_input(&mut self, port: usize, len: u32) {
        self.post(receive_queue(port), len);
    }

    /// Takes what the device has written into the next posted buffer of a queue.
    pub fn taken(&mut self, queue: u16) -> Option<Vec<u8>> {
        let (_, written) = self.queues[usize::from(queue)].take_used()?;
        let at = self.posted[usize::from(queue)].pop_front().expect("it was posted");
        let mut bytes = vec![0; written as usize];
        self.memory.read(at, &mut bytes).expect("a buffer");
        Some(bytes)
    }

    /// Takes the next input of a port.
    pub fn input(&mut self, port: usize) -> Option<Vec<u8>> {
        self.taken(receive_queue(port))
    }

    /// Takes all control messages, with the names that follow them.
    pub fn messages(&mut self) -> Vec<(u32, u16, u16, String)> {
        let all = core::iter::from_fn(|| self.taken(CONTROL_RECEIVE));
        all.map(|bytes| {
            let message = Message::decode(bytes[..8].try_into().expect("a message"));
            (message.id, message.event, message.value, String::from_utf8(bytes[8..].into()).expect("a name"))
        })
        .collect()
    }

    /// How many requests of a queue the device has used.
    pub fn used(&mut self, queue: u16) -> usize {
        core::iter::from_fn(|| self.queues[usize::from(queue)].take_used()).count()
    }

    /// Takes all output of a port that the control core can read.
    pub fn read(&mut self, port: usize) -> Vec<u8> {
        let mut bytes = [0; 4096];
        let len = self.ends[port].read(&mut bytes);
        bytes[..len].to_vec()
    }

    /// Returns how often it broke this rule.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.shared.faults().find(|(kind, _)| *kind == fault).map_or(0, |(_, count)| count)
    }

    pub fn port(&self, number: usize) -> &'static Port {
        self.ports.get(number).expect("the guest has it")
    }
}

/// An engine, and the interrupts that it sends.
pub struct Bench {
    pub engine: Box<Engine<Console, PerDevice, &'static Recorder>>,
    pub interrupts: &'static Recorder,
    pub bell: &'static Bell,
    pub now: u64,
}

impl Bench {
    /// Makes an engine with these guests.
    pub fn with(guests: &mut [&mut Guest]) -> Self {
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        let bell: &Bell = Box::leak(Box::default());
        let engine = Box::new(Engine::new(control, Console::new(bell), PerDevice::new(64), interrupts));
        let mut bench = Self { engine, interrupts, bell, now: 0 };
        for guest in guests {
            assert_eq!(bench.attach(guest, None), Reply::Attached);
        }
        bench.turn();
        bench
    }

    /// Makes an engine with a guest whose ports are all set up, and named ports opened by both sides.
    pub fn connected(features: Features, names: &[&str]) -> (Self, Guest) {
        let mut guest = Guest::new(3, features, names);
        let mut bench = Self::with(&mut [&mut guest]);
        bench.connect(&mut guest);
        (bench, guest)
    }

    /// Shakes hands for all ports, and opens them on both sides.
    pub fn connect(&mut self, guest: &mut Guest) {
        (0..16).for_each(|_| guest.post(CONTROL_RECEIVE, 64));
        guest.tell(u32::MAX, event::DEVICE_READY, 1);
        self.turn();
        for (number, port) in guest.ports.all().iter().enumerate() {
            port.set_open(true);
            guest.tell(number as u32, event::PORT_READY, 1);
            guest.tell(number as u32, event::PORT_OPEN, 1);
        }
        self.bell.ring(guest.slot);
        self.turn();
        self.turn();
        guest.messages();
        assert!(guest.ports.all().iter().all(Port::is_guest_open));
    }

    /// Attaches a guest's device to its slot, with new rings.
    pub fn attach(&mut self, guest: &mut Guest, state: Option<DeviceState>) -> Reply {
        let mut ends = [const { None }; device::MAX_PORTS];
        guest.ends.clear();
        for end in ends.iter_mut().take(guest.ports.all().len()) {
            let (engine, control) = wire(OUTPUT, INPUT);
            *end = Some(engine);
            guest.ends.push(control);
        }
        self.command(Command::Attach(Attachment {
            slot: guest.slot,
            number: guest.slot,
            shared: guest.shared,
            memory: guest.memory.clone(),
            requests: Requests::Poll,
            share: GuestWeight::of_guest(guest.slot),
            config: Config { ports: guest.ports, ends },
            state,
        }))
    }

    /// Gives the engine a command. Returns its reply.
    pub fn command(&mut self, command: Command<Config>) -> Reply {
        let control = self.engine.control();
        assert!(control.submit(command).is_ok(), "the slot is free");
        self.turn();
        control.reply().expect("answered within a turn")
    }

    /// Gives input to a port. Returns how many bytes fitted.
    pub fn write(&self, guest: &mut Guest, port: usize, bytes: &[u8]) -> usize {
        let written = guest.ends[port].write(bytes);
        self.bell.ring(guest.slot);
        written
    }

    /// Runs a turn. Returns how many requests were moved.
    pub fn turn(&mut self) -> u32 {
        self.now += 1;
        self.engine.turn(self.now)
    }
}
