//! An engine with the net back-end, and what its tests need around it. No test is here.

pub mod neighbours;
pub mod nic;

use ::nic::Nic;
use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, Limits, PerDevice};
use proptest::prelude::ProptestConfig;

use crate::backend::Net;
use crate::port::Port;
use crate::testing::{Guest, Recorder};
use crate::uplink::{Held, NoNic};

/// So many cases of a property; Miri, which is a thousand times slower, tries two.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(if cfg!(miri) { 2 } else { cases })
}

/// An engine with the net back-end, and the interrupts it sends.
pub struct Bench<N: Nic<Token = Held> = NoNic> {
    pub engine: Box<Engine<Net<N>, Chosen, &'static Recorder>>,
    pub interrupts: &'static Recorder,
    pub now: u64,
}

impl Bench {
    pub fn with(guests: &[&Guest]) -> Self {
        Self::by(Chosen::PerDevice(PerDevice::new(64)), guests, Requests::Poll)
    }

    /// Scheduled as an engine is that has several guests.
    pub fn with_requests(guests: &[&Guest], requests: Requests) -> Self {
        let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 1 << 40, least: 16, stall: 1 << 40 };
        Self::by(Chosen::Fine(Fine::new(limits)), guests, requests)
    }

    pub fn by(schedule: Chosen, guests: &[&Guest], requests: Requests) -> Self {
        let mut bench = Self::scheduled(schedule);
        for (port, guest) in guests.iter().enumerate() {
            assert_eq!(bench.attach_with(port, guest, requests), Reply::Attached);
        }
        bench
    }
}

impl<N: Nic<Token = Held>> Bench<N> {
    pub fn new() -> Self {
        Self::scheduled(Chosen::PerDevice(PerDevice::new(64)))
    }

    pub fn scheduled(schedule: Chosen) -> Self {
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        let engine = Engine::new(control, Net::new(0x5eed, 1_000_000), schedule, interrupts);
        Self { engine: Box::new(engine), interrupts, now: 0 }
    }

    pub fn attach(&mut self, port: usize, guest: &Guest) -> Reply {
        self.attach_with(port, guest, Requests::Poll)
    }

    pub fn attach_with(&mut self, port: usize, guest: &Guest, requests: Requests) -> Reply {
        self.command(Command::Attach(Attachment { number: port + 100, requests, ..guest.attachment(port) }))
    }

    pub fn command(&mut self, command: Command<Port>) -> Reply {
        let control = self.engine.control();
        control.submit(command).expect("the slot is free");
        self.turn();
        control.reply().expect("answered within a turn")
    }

    pub fn turn(&mut self) -> u32 {
        self.now += 1;
        self.engine.turn(self.now)
    }
}
