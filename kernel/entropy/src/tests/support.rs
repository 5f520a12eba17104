//! Test support: an engine with the entropy back-end, a source that can run empty, and guests.

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{GuestWeight, PerDevice};
use engine::testing::Recorder;
use memory::GuestMemory;
use virtio::config::{DeviceConfig, Features};
use virtio::fault::Fault;
use virtio::shared::Shared;
use virtio::testing::{BUFFER_STRIDE, BUFFERS, DriverQueue, MEMORY, set_up_interrupts};

use crate::backend::Entropy;
use crate::counters::EntropyCounters;
use crate::device;
use crate::limit::Limit;
use crate::source::Source;

/// The features that the device offers.
pub const SPLIT: Features = Features::all().difference(Features::RING_PACKED.union(Features::IN_ORDER));
/// The same with packed rings, which the device does not offer.
pub const PACKED: Features = SPLIT.union(Features::RING_PACKED);
/// The features that drivers accept in tests: with split rings, with packed rings, and no optional ones.
pub const FORMS: [Features; 3] = [SPLIT, PACKED, Features::VERSION_1];

/// A source whose bytes count up from 1. It fills `fills_left` requests, and is empty then.
#[derive(Default)]
pub struct Counting {
    pub last: u8,
    pub fills_left: usize,
    pub asked: usize,
}

impl Source for Counting {
    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        self.asked += 1;
        let Some(left) = self.fills_left.checked_sub(1) else { return false };
        self.fills_left = left;
        for byte in bytes {
            self.last = self.last % 250 + 1;
            *byte = self.last;
        }
        true
    }
}

/// A guest with an entropy device.
pub struct Guest {
    pub memory: GuestMemory,
    pub shared: &'static Shared,
    pub counters: &'static EntropyCounters,
    pub queue: DriverQueue,
    pub slot: usize,
    features: Features,
    next: u64,
}

impl Guest {
    /// Makes a guest whose driver has set DRIVER_OK.
    pub fn new(slot: usize, features: Features) -> Self {
        let offered = device::config();
        let config = DeviceConfig { features: offered.features | features.bits(), ..offered };
        let memory = memory::guest::testing::memory(0, MEMORY);
        let mut guest = Self {
            queue: DriverQueue::new(&memory, 0, offered.queue_size, features),
            memory,
            shared: Box::leak(Box::new(Shared::new(config))),
            counters: Box::leak(Box::default()),
            slot,
            features,
            next: 0,
        };
        guest.start();
        guest
    }

    /// Sets up its queue and interrupts, and sets DRIVER_OK.
    pub fn start(&mut self) {
        set_up_interrupts(&self.shared.msix, 0x40..0x42);
        self.set_up_queue();
        assert!(self.shared.activate(self.features.bits()));
    }

    /// Sets up its queue. The driver forgets what it had offered before.
    pub fn set_up_queue(&mut self) {
        self.queue = DriverQueue::new(&self.memory, 0, self.queue.config.size, self.features);
        assert!(self.shared.configure_queue(0, &self.queue.config));
    }

    /// Offers a request of these buffers (length, device-writable). They are filled with zeroes. Notifies the device if
    /// the device wants that. Returns the addresses of the buffers.
    pub fn ask(&mut self, buffers: &[(u32, bool)]) -> Vec<u64> {
        let mut at = BUFFERS + self.next % 64 * 4 * BUFFER_STRIDE;
        self.next += 1;
        let mut request = Vec::new();
        for &(len, writable) in buffers {
            self.memory.zero(at, len.into()).expect("a buffer");
            request.push((at, len, writable));
            at += BUFFER_STRIDE;
        }
        self.queue.add(&request).expect("there is room");
        if self.queue.kick_prepare() {
            self.shared.kick(0);
        }
        request.iter().map(|&(gpa, ..)| gpa).collect()
    }

    /// Returns bytes of its memory.
    pub fn bytes(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(gpa, &mut bytes).expect("a buffer");
        bytes
    }

    /// Returns the written length of the next used request.
    pub fn used(&mut self) -> Option<u32> {
        self.queue.take_used().map(|(_, written)| written)
    }

    /// Returns how often it broke this rule.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.shared.faults().find(|(kind, _)| *kind == fault).map_or(0, |(_, count)| count)
    }

    /// Returns its counters: requests, bytes, starved requests.
    pub fn counted(&self) -> [u64; 3] {
        [&self.counters.requests, &self.counters.bytes, &self.counters.starved].map(|counter| counter.get())
    }
}

/// An engine, and the interrupts that it sends.
pub struct Bench {
    pub engine: Box<Engine<Entropy<Counting>, PerDevice, &'static Recorder>>,
    pub interrupts: &'static Recorder,
    now: u64,
}

impl Bench {
    /// Makes an engine with these guests, whose queues are armed, and a source that never runs empty.
    pub fn with(guests: &[&Guest]) -> Self {
        Self::limited(guests, Limit { ticks_per_byte: 0, burst: 0 })
    }

    /// The same, with this rate of each guest.
    pub fn limited(guests: &[&Guest], limit: Limit) -> Self {
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        let backend = Entropy::new(Counting { fills_left: usize::MAX, ..Counting::default() }, limit);
        let mut bench = Self {
            engine: Box::new(Engine::new(control, backend, PerDevice::new(64), interrupts)),
            interrupts,
            now: 0,
        };
        for guest in guests {
            assert_eq!(bench.attach(guest), Reply::Attached);
        }
        bench.turn();
        bench.turn();
        bench
    }

    /// Attaches a guest's device to its slot.
    pub fn attach(&mut self, guest: &Guest) -> Reply {
        self.command(Command::Attach(Attachment {
            slot: guest.slot,
            number: guest.slot,
            shared: guest.shared,
            memory: guest.memory.clone(),
            // No effect: the back-end asks for notifications.
            requests: Requests::Poll,
            share: GuestWeight::of_guest(guest.slot),
            config: guest.counters,
            state: None,
        }))
    }

    /// Gives the engine a command. Returns its reply.
    pub fn command(&mut self, command: Command<&'static EntropyCounters>) -> Reply {
        let control = self.engine.control();
        assert!(control.submit(command).is_ok(), "the slot is free");
        self.turn();
        control.reply().expect("answered within a turn")
    }

    /// Runs a turn. Returns how many requests were moved.
    pub fn turn(&mut self) -> u32 {
        self.now += 1;
        self.engine.turn(self.now)
    }

    /// Returns the source.
    pub fn source(&mut self) -> &mut Counting {
        self.engine.backend_mut().source_mut()
    }
}
