//! An engine with a back-end for tests, and the guests that use it. No test is here.

pub mod guest;
pub mod idle;
pub mod late;
pub mod relay;

use virtio::config::Features;

use crate::backend::Backend;
use crate::control::{Attachment, Command, Control, Reply};
use crate::engine::Engine;
use crate::requests::Requests;
use crate::schedule::{Chosen, Fine, Limits, PerDevice};
use crate::testing::Recorder;
use guest::Guest;
use relay::Relay;

/// An engine, and the interrupts it sends.
pub struct Bench<B: Backend = Relay> {
    pub engine: Box<Engine<B, Chosen, &'static Recorder>>,
    pub interrupts: &'static Recorder,
    pub now: u64,
}

impl Bench {
    /// With these guests, each visited once a turn.
    pub fn with(guests: &[&Guest]) -> Self {
        Self::by(per_device(), guests, Requests::Poll)
    }

    /// Scheduled as an engine is that has several guests.
    pub fn with_requests(guests: &[&Guest], requests: Requests) -> Self {
        Self::by(fine(), guests, requests)
    }

    /// With these guests, each in its slot.
    pub fn by(schedule: Chosen, guests: &[&Guest], requests: Requests) -> Self {
        let mut bench = Self::new(Relay::default(), schedule);
        for guest in guests {
            assert_eq!(bench.attach_with(guest.slot, guest, requests), Reply::Attached);
        }
        bench
    }

    /// Attaches a guest's device, whose queues are polled.
    pub fn attach(&mut self, slot: usize, guest: &Guest) -> Reply {
        self.attach_with(slot, guest, Requests::Poll)
    }

    fn attach_with(&mut self, slot: usize, guest: &Guest, requests: Requests) -> Reply {
        self.command(Command::Attach(Attachment { number: slot + 100, requests, ..guest.attachment(slot) }))
    }
}

impl<B: Backend> Bench<B> {
    /// Without a device.
    pub fn new(backend: B, schedule: Chosen) -> Self {
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        Self { engine: Box::new(Engine::new(control, backend, schedule, interrupts)), interrupts, now: 0 }
    }

    /// Gives the engine a command. Returns its reply.
    pub fn command(&mut self, command: Command<B::Config>) -> Reply {
        let control = self.engine.control();
        assert!(control.submit(command).is_ok(), "the slot is free");
        self.turn();
        control.reply().expect("answered within a turn")
    }

    /// A turn: how many requests were moved.
    pub fn turn(&mut self) -> u32 {
        self.now += 1;
        self.engine.turn(self.now)
    }
}

/// Each device once a turn.
pub fn per_device() -> Chosen {
    Chosen::PerDevice(PerDevice::new(64))
}

/// By time, of which a visit has as much as it likes.
pub fn fine() -> Chosen {
    Chosen::Fine(Fine::new(Limits { requests: 64, bytes: 1 << 20, quantum: 1 << 40, least: 16, stall: 1 << 40 }))
}

/// A sender at slot 0 and a receiver with buffers at slot 1, on an engine that has come to rest.
pub fn two(features: Features, requests: Requests) -> (Guest, Guest, Bench) {
    let (a, mut b) = (Guest::new(0, features, 256), Guest::new(1, features, 256));
    let mut bench = Bench::with_requests(&[&a, &b], requests);
    b.post(200, 2048);
    bench.turn();
    bench.turn();
    bench.interrupts.take();
    (a, b, bench)
}
