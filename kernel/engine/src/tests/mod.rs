//! Tests of the whole crate: engine, queues and net back-end together with a driver's half.

mod differential;
mod hostile;
mod idle;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod packed;
mod packed_ring;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod split;
mod split_ring;

use core::sync::atomic::{Ordering, fence};

use memory::GuestMemory;

use crate::control::{Attachment, Command, Control, Reply};
use crate::engine::Engine;
use crate::net::Net;
use crate::queue::{Queue, Wish};
use crate::requests::Requests;
use crate::schedule::{Chosen, Fine, Limits, PerDevice};
use crate::testing::{Guest, Recorder};
use crate::uplink::{Held, NoNic};
use nic::Nic;

/// So many cases of a property; Miri, which is a thousand times slower, tries two.
fn cases(cases: u32) -> proptest::prelude::ProptestConfig {
    proptest::prelude::ProptestConfig::with_cases(if cfg!(miri) { 2 } else { cases })
}

/// Shows the driver of a queue what was completed, and looks at its wish.
fn publish(queue: &mut Queue, memory: &GuestMemory) -> Wish {
    queue.publish();
    fence(Ordering::SeqCst);
    queue.wish(memory).unwrap()
}

/// An engine with the net back-end, and the interrupts it sends.
struct Bench<N = NoNic> {
    engine: Box<Engine<Net<N>, Chosen, &'static Recorder>>,
    interrupts: &'static Recorder,
    now: u64,
}

impl Bench {
    fn with(guests: &[&Guest]) -> Self {
        Self::by(Chosen::PerDevice(PerDevice::new(64)), guests, Requests::Poll)
    }

    /// Scheduled as an engine is that has several guests.
    fn with_requests(guests: &[&Guest], requests: Requests) -> Self {
        let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 1 << 40, least: 16, stuck: 1 << 40 };
        Self::by(Chosen::Fine(Fine::new(limits)), guests, requests)
    }

    fn by(schedule: Chosen, guests: &[&Guest], requests: Requests) -> Self {
        let mut bench = Self::scheduled(schedule);
        for (port, guest) in guests.iter().enumerate() {
            assert_eq!(bench.attach_with(port, guest, requests), Reply::Attached);
        }
        bench
    }
}

impl<N: Nic<Token = Held>> Bench<N> {
    fn new() -> Self {
        Self::scheduled(Chosen::PerDevice(PerDevice::new(64)))
    }

    fn scheduled(schedule: Chosen) -> Self {
        let control = Box::leak(Box::new(Control::new()));
        let interrupts: &Recorder = Box::leak(Box::default());
        let engine = Engine::new(control, Net::new(0x5eed, 1_000_000), schedule, interrupts);
        Self { engine: Box::new(engine), interrupts, now: 0 }
    }

    fn attach(&mut self, port: usize, guest: &Guest) -> Reply {
        self.attach_with(port, guest, Requests::Poll)
    }

    fn attach_with(&mut self, port: usize, guest: &Guest, requests: Requests) -> Reply {
        self.command(Command::Attach(Attachment { number: port + 100, requests, ..guest.attachment(port) }))
    }

    fn command(&mut self, command: Command) -> Reply {
        let control = self.engine.control();
        control.submit(command).expect("the slot is free");
        self.turn();
        control.reply().expect("answered within a turn")
    }

    fn turn(&mut self) -> u32 {
        self.now += 1;
        self.engine.turn(self.now)
    }
}
