//! Guests that make an engine work hard for few requests, and the machine that they attack: six streams of frames between
//! honest guests, and two honest guests of which one sends single frames. `benches/attackers.rs` counts what a frame of each
//! attacker costs. `tests/attackers.rs` shows in virtual time what is left to the others.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;

use engine::clock::Clock;
use engine::control::{Command, Control, Reply};
use engine::engine::Engine;
use engine::observe::{Completion, Observer, Turn, Visit};
use engine::schedule::{Fine, INSTRUCTION_BYTES, Limits};
use engine::testing::Recorder;
use virtio::testing::BUFFERS;

use super::guest::{BROADCAST, Guest, SPLIT};
use crate::backend::Net;
use crate::features::Features;
use crate::offload::{HEADER_BYTES, LEAST_MSS};
use crate::policy::Policy;
use crate::policy::stage::{Action, Rule, Sink, Stage};
use crate::port::Port;

/// Streams of honest guests. The sender of stream `n` is at slot `2 * n`, its receiver at the next one.
pub const STREAMS: usize = 6;
/// The slot of the honest guest that sends single frames. Their receiver is at the next one.
pub const LONE: usize = 2 * STREAMS;
/// The slot of the attacker.
pub const ATTACKER: usize = LONE + 2;
/// The slot of the attacker's receiver, which is as hostile.
pub const ACCOMPLICE: usize = ATTACKER + 1;
/// Bytes of an honest frame.
pub const HONEST_BYTES: usize = 1500;
/// Requests that a sender keeps waiting.
const WAITING: usize = 64;
/// Where the attacker's frame lies, and the table of a long chain.
const FRAME: u64 = BUFFERS + 0x10_0000;
const LONG_TABLE: u64 = BUFFERS + 0x14_0000;
/// Buffers of a long chain: as many as a queue of a network device has descriptors.
const LONG: usize = 256;

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attacker {
    /// Sends short broadcasts.
    Broadcasts,
    /// Sends long frames to a multicast address.
    Multicasts,
    /// Sends TCP to be cut into as many segments as one frame may have, each as small as it may be.
    SmallSegments,
    /// The same to a multicast address.
    SegmentsForAll,
    /// The same to a receiver without buffers.
    SegmentsForNobody,
    /// Sends frames in buffers of one byte, as many as a chain may have.
    LongChains,
    /// Sends to a receiver whose buffers are chains of 64 descriptors.
    TinyBuffers,
    /// Sends to a receiver that has many buffers, and all of them together are too small.
    ShortBuffers,
    /// Sends to a receiver without buffers.
    NoBuffers,
    /// The operator has its frames mirrored.
    Mirrored,
}

impl Attacker {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Broadcasts,
        Self::Multicasts,
        Self::SmallSegments,
        Self::SegmentsForAll,
        Self::SegmentsForNobody,
        Self::LongChains,
        Self::TinyBuffers,
        Self::ShortBuffers,
        Self::NoBuffers,
        Self::Mirrored,
    ];

    /// Its name on the command line of the benchmark.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcasts => "broadcasts",
            Self::Multicasts => "multicasts",
            Self::SmallSegments => "small-segments",
            Self::SegmentsForAll => "segments-for-all",
            Self::SegmentsForNobody => "segments-for-nobody",
            Self::LongChains => "long-chains",
            Self::TinyBuffers => "tiny-buffers",
            Self::ShortBuffers => "short-buffers",
            Self::NoBuffers => "no-buffers",
            Self::Mirrored => "mirrored",
        }
    }

    /// Frames that it keeps waiting. Receivers have buffers for one frame that is cut into 128 segments.
    const fn waiting(self) -> usize {
        if matches!(self, Self::SmallSegments | Self::SegmentsForAll) { 1 } else { WAITING }
    }

    /// Instructions of the engine for one of its frames, as callgrind has counted them. `cargo mk bench switch
    /// --instructions` counts them again.
    #[must_use]
    pub const fn instructions(self) -> u64 {
        match self {
            Self::Broadcasts => 19_305,
            Self::Multicasts => 25_287,
            Self::SmallSegments => 228_237,
            Self::SegmentsForAll => 261_977,
            Self::SegmentsForNobody => 84_996,
            Self::LongChains => 53_316,
            Self::TinyBuffers => 18_524,
            Self::ShortBuffers => 2_118,
            Self::NoBuffers => 156,
            Self::Mirrored => 5_104,
        }
    }
}

/// Sums what visits to the attacker's queue have caused, as the back-end says.
#[derive(Default)]
pub struct Bill {
    /// Work of the attacker's frames, in instructions.
    pub attacker: Cell<u64>,
}

impl Observer for Bill {
    fn turn(&self, _: &Turn) {}

    fn visit(&self, visit: &Visit) {
        if visit.queue.slot() == ATTACKER {
            self.attacker.set(self.attacker.get() + visit.bytes / INSTRUCTION_BYTES);
        }
    }

    fn completion(&self, _: &Completion) {}
}

/// The machine: its engine, and its guests.
pub struct Machine {
    /// The engine.
    pub engine: Box<Engine<Net, Fine<256>, &'static Recorder>>,
    /// The guests.
    pub guests: Guests,
}

/// The guests of the machine, by slot. Their drivers run between the turns of the engine, or while it reads the clock.
pub struct Guests {
    /// The guests by slot.
    pub all: Vec<Guest>,
    interrupts: &'static Recorder,
    attacker: Attacker,
    /// Bytes of the attacker's frame, with its header.
    bytes: u32,
    honest: Vec<Vec<u8>>,
}

/// A TCP packet over IPv4 that asks to be cut into 128 segments, with its virtio-net header.
fn small_segments(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let payload = 128 * usize::from(LEAST_MSS);
    let mut bytes = vec![0; HEADER_BYTES];
    // NEEDS_CSUM, TCPV4, the MSS, and where the checksum is.
    bytes[0] = 1;
    bytes[1] = 1;
    bytes[4..6].copy_from_slice(&LEAST_MSS.to_le_bytes());
    bytes[6..8].copy_from_slice(&34_u16.to_le_bytes());
    bytes[8..10].copy_from_slice(&16_u16.to_le_bytes());
    bytes.extend([&to[..], &from, &[8, 0]].concat());
    let total = (40 + payload) as u16;
    bytes.extend(
        [&[0x45, 0][..], &total.to_be_bytes(), &[0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat(),
    );
    bytes.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|i| i as u8));
    bytes
}

impl Machine {
    /// A machine whose attacker is of this kind. A guest with the largest weight has `quantum` ticks in a round.
    #[must_use]
    pub fn new(attacker: Attacker, quantum: u64) -> Self {
        let interrupts: &Recorder = Box::leak(Box::default());
        let control: &Control<Port> = Box::leak(Box::default());
        control.observe(true);
        let limits = Limits { requests: 256, bytes: 256 << 10, quantum, least: 16, stall: 2_000 };
        let mut engine = Box::new(Engine::new(control, Net::new(1, 1 << 60), Fine::new(limits), interrupts));
        // Receivers cut and sum for themselves what nobody else has to.
        let honest = SPLIT.difference(Features::NET_GUEST_TSO4 | Features::NET_GUEST_CSUM);
        let mut guests: Vec<_> = (0..ATTACKER).map(|n| Guest::new(n as u8 + 1, honest, 256, 1500)).collect();
        let rules = (attacker == Attacker::Mirrored).then(|| {
            let mut policy = Policy::default();
            policy.enter.push(Stage::new(Rule::default(), Action::Mirror(Sink::Port(1)))).expect("there is room");
            &*Box::leak(Box::new(policy))
        });
        guests.push(Guest::with_rules(ATTACKER as u8 + 1, SPLIT, 256, 1500, rules));
        guests.push(Guest::new(ACCOMPLICE as u8 + 1, honest, 256, 1500));
        for (slot, guest) in guests.iter().enumerate() {
            engine.control().submit(Command::Attach(guest.attachment(slot))).expect("the slot is free");
            engine.turn(0);
            assert_eq!(engine.control().reply(), Some(Reply::Attached));
            engine.turn(0);
        }
        for guest in &mut guests[..ATTACKER] {
            guest.post(250, &[2048]);
        }
        match attacker {
            Attacker::TinyBuffers => drop(guests[ACCOMPLICE].post(200, &[24; 64])),
            Attacker::ShortBuffers => drop(guests[ACCOMPLICE].post(200, &[1])),
            Attacker::NoBuffers | Attacker::SegmentsForNobody => {}
            _ => drop(guests[ACCOMPLICE].post(250, &[2048])),
        }
        let frame = |to, len| [vec![0; HEADER_BYTES], guests[ATTACKER].frame(to, len, 7)].concat();
        let (accomplice, from) = (guests[ACCOMPLICE].mac, guests[ATTACKER].mac);
        let multicast = [1, 0, 0x5e, 0, 0, 1];
        let bytes = match attacker {
            Attacker::Broadcasts => frame(BROADCAST, 60),
            Attacker::Multicasts => frame(multicast, 1500),
            Attacker::SmallSegments | Attacker::SegmentsForNobody => small_segments(accomplice, from),
            Attacker::SegmentsForAll => small_segments(multicast, from),
            Attacker::LongChains => frame(accomplice, LONG - HEADER_BYTES),
            Attacker::TinyBuffers | Attacker::ShortBuffers => frame(accomplice, 1500),
            Attacker::NoBuffers | Attacker::Mirrored => frame(accomplice, 60),
        };
        let memory = &guests[ATTACKER].memory;
        memory.write(FRAME, &bytes).expect("a buffer");
        for i in 0..LONG as u64 {
            memory.write_u64(LONG_TABLE + 16 * i, FRAME + i).expect("a table");
            memory.write_u32(LONG_TABLE + 16 * i + 8, 1).expect("a table");
            memory
                .write_u32(LONG_TABLE + 16 * i + 12, if i + 1 < LONG as u64 { 1 | (i as u32 + 1) << 16 } else { 0 })
                .expect("a table");
        }
        let honest = (0..=STREAMS).map(|n| guests[2 * n].frame(guests[2 * n + 1].mac, HONEST_BYTES, 7)).collect();
        let guests = Guests { all: guests, interrupts, attacker, bytes: bytes.len() as u32, honest };
        Self { engine, guests }
    }

    /// One turn of the engine.
    #[inline(never)]
    pub fn measured(&mut self, time: u64, clock: &impl Clock, bill: &Bill) -> u64 {
        self.engine.counted_turn(time, clock, bill)
    }
}

impl Guests {
    /// The attacker's driver offers as many frames as it keeps waiting.
    pub fn attack(&mut self) {
        let guest = &mut self.all[ATTACKER];
        while guest.tx.take_used().is_some() {}
        let size = usize::from(guest.tx.config.size);
        while size - guest.tx.free() < self.attacker.waiting() {
            if self.attacker == Attacker::LongChains {
                let head = guest.tx.add(&[(LONG_TABLE, 16 * LONG as u32, false)]).expect("the queue has room");
                let flags = guest.tx.config.desc + 16 * u64::from(head) + 12;
                guest.memory.write_u16(flags, 4).expect("the descriptor table");
            } else {
                guest.tx.add(&[(FRAME, self.bytes, false)]).expect("the queue has room");
            }
        }
    }

    /// The sender of an honest stream offers as many frames as it keeps waiting.
    pub fn stream(&mut self, n: usize) {
        let guest = &mut self.all[2 * n];
        while guest.tx.take_used().is_some() {}
        while 256 - guest.tx.free() < WAITING {
            assert!(guest.send(&self.honest[n], &[]), "the queue has room");
        }
    }

    /// The honest guest sends one frame.
    pub fn ask(&mut self) {
        let Self { all, honest, .. } = self;
        assert!(all[LONE].send(&honest[STREAMS], &[]), "the queue has room");
    }

    /// Whether a frame has come for the receiver at slot `slot`.
    #[must_use]
    pub fn has_come(&self, slot: usize) -> bool {
        self.all[slot].rx.has_used()
    }

    /// The driver at slot `slot` takes what it got, and posts its buffers again.
    pub fn receive_at(&mut self, slot: usize) {
        let tiny = slot == ACCOMPLICE && self.attacker == Attacker::TinyBuffers;
        let guest = &mut self.all[slot];
        while guest.rx.take_used().is_some() {
            guest.post(1, if tiny { &[24; 64] } else { &[2048] });
        }
    }

    /// All drivers take what they got, and post their buffers again.
    pub fn receive(&mut self) {
        (0..self.all.len()).for_each(|slot| self.receive_at(slot));
        drop(self.interrupts.take());
    }

    /// Frames that the guest at slot `slot` has sent.
    #[must_use]
    pub fn sent(&self, slot: usize) -> u64 {
        self.all[slot].counters().frames.tx_packets.get()
    }
}

/// Has an attacker send at least `frames` frames alone. Returns how many there were, and the work that the back-end says.
#[must_use]
pub fn run(attacker: Attacker, frames: u64) -> (u64, u64) {
    let (mut machine, bill) = (Machine::new(attacker, 1 << 40), Bill::default());
    while machine.guests.sent(ATTACKER) < frames {
        machine.guests.attack();
        machine.measured(1, &|| 1, &bill);
        machine.guests.receive();
    }
    (machine.guests.sent(ATTACKER), bill.attacker.get())
}
