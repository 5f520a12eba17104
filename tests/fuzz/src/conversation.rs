//! A conversation over the engine's switch in which one driver does whatever it likes to its rings, its interrupts and its
//! device, and two honest ones talk to each other meanwhile. Whatever happens: what the honest ones send each other arrives
//! whole and in order as long as they had buffers for it, nothing is written where nobody asked for it, their devices stay
//! good, a reset is always done, and the other one gets its device back whenever it behaves.

use std::cell::RefCell;
use std::collections::VecDeque;

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, Limits, PerDevice};
use net::backend::Net;
use net::features::Features;
use net::port::Port;
use net::testing::{BROADCAST, BUFFERS, Guest, MEMORY, RING_AREA, Recorder, SPLIT, TABLES};
use virtio::config::QueueConfig;

use crate::hostile;
use crate::input::Input;
use crate::planted::planted;
use crate::play;

/// Descriptors of the hostile guest's queues: few, so that it hits them.
const FEW: u16 = 8;
/// Descriptors of the honest guests' queues.
const MANY: u16 = 256;
/// A page of the honest guests' memory in which nobody has any business, and what is in it.
const FENCE: u64 = BUFFERS + 0x20_0000;
const UNTOUCHED: [u8; 0x1000] = [0xa5; 0x1000];
/// A buffer takes a whole frame, so that one frame of the hostile guest's costs a receiver no more than one.
const BUFFER: u32 = 1526;

const HOSTILE: usize = 0;
/// Of the four queues that the hostile guest sets up, those that are visited: for sending, and for commands.
const HOSTILE_QUEUES: u32 = 3;

/// The guests and the engine between them. They are made once for each way to negotiate, because tests' memory is never
/// given back; a run begins by starting all devices anew.
struct World {
    engine: Box<Engine<Net, Chosen, &'static Recorder>>,
    interrupts: &'static Recorder,
    /// The hostile guest's rings are packed.
    packed: bool,
    guests: [Guest; 3],
    now: u64,
    serial: u32,
    /// Frames on their way between the honest guests, by receiver.
    expected: [VecDeque<Vec<u8>>; 2],
    attached: bool,
}

impl World {
    fn new(features: [Features; 3], fine: bool) -> Self {
        let control: &Control<Port> = Box::leak(Box::default());
        let interrupts: &Recorder = Box::leak(Box::default());
        let limits = Limits { requests: 64, bytes: 64 << 10, quantum: 8, least: 4, stall: 2 };
        let schedule = if fine { Chosen::Fine(Fine::new(limits)) } else { Chosen::PerDevice(PerDevice::new(16)) };
        let guest = |number: u8, size| {
            let guest = Guest::new(number, features[usize::from(number) - 1], size, 1500);
            guest.memory.write(FENCE, &UNTOUCHED).expect("in its memory");
            guest
        };
        Self {
            engine: Box::new(Engine::new(control, Net::new(0x5eed, 1000), schedule, interrupts)),
            interrupts,
            packed: features[HOSTILE].contains(Features::RING_PACKED),
            guests: [guest(1, FEW), guest(2, MANY), guest(3, MANY)],
            now: 0,
            serial: 0,
            expected: Default::default(),
            attached: false,
        }
    }

    fn command(&mut self, command: Command<Port>) -> Reply {
        play::command(self.engine.control(), command, || self.turn())
    }

    fn attach(&mut self, port: usize, requests: Requests) {
        let attachment = Attachment { requests, ..self.guests[port].attachment(port) };
        assert_eq!(self.command(Command::Attach(attachment)), Reply::Attached);
    }

    fn turn(&mut self) {
        self.now += 1;
        self.engine.turn(self.now);
        self.interrupts.take();
    }

    /// The device of `port` is reset, which is always done, and started.
    fn restart(&mut self, port: usize) {
        let shared = self.guests[port].shared;
        shared.request_reset();
        for _ in 0..4 {
            self.turn();
        }
        assert!(shared.reset_done(), "a reset is always done");
        self.guests[port].start();
        self.turn();
    }

    /// A queue of `port` is reset, which is always done, and set up.
    fn resize(&mut self, port: usize, transmit: bool) {
        let Self { engine, guests, now, .. } = self;
        let mut turns = 0;
        guests[port].resize(transmit, MANY, || {
            turns += 1;
            assert!(turns < 8, "a reset of a queue is always done");
            *now += 1;
            engine.turn(*now);
        });
    }

    /// Gives an honest guest all the buffers that it can have.
    fn post(&mut self, port: usize) {
        self.guests[port].post(usize::from(MANY), &[BUFFER]);
    }

    /// An honest guest sends some frames to the other one, to all or to the hostile one.
    fn send(&mut self, from: usize, to: u8, len: usize, count: u8, cuts: &[usize]) {
        let other = 3 - from;
        self.post(other);
        for _ in 0..count {
            let to = match to % 8 {
                0 => BROADCAST,
                1 => self.guests[HOSTILE].mac,
                _ => self.guests[other].mac,
            };
            self.serial += 1;
            let mut frame = self.guests[from].frame(to, len, self.serial as u8);
            frame[14..18].copy_from_slice(&self.serial.to_le_bytes());
            assert!(self.guests[from].send(&frame, cuts), "what was sent before has been completed");
            if to != self.guests[HOSTILE].mac {
                self.expected[other - 1].push_back(frame);
            }
        }
        // Polled queues with room for one portion a turn.
        for _ in 0..1 + count / 8 {
            self.turn();
        }
        self.receive();
    }

    /// What has arrived at the honest guests. The hostile one may have sent them something too.
    fn receive(&mut self) {
        for port in 1..self.guests.len() {
            let expected = &mut self.expected[port - 1];
            while let Some((header, frame)) = self.guests[port].receive_with() {
                // They are sent with nothing to be done to them.
                if header == [0; 10] && expected.front() == Some(&frame) && !planted() {
                    expected.pop_front();
                }
            }
        }
    }

    fn queue(&self, transmit: bool) -> QueueConfig {
        let guest = &self.guests[HOSTILE];
        if transmit { guest.tx.config } else { guest.rx.config }
    }

    /// Offers a descriptor of the hostile guest's by the rules of its ring, or nearly.
    fn offer(&self, transmit: bool, number: u16) {
        let guest = &self.guests[HOSTILE];
        let driver = if transmit { &guest.tx } else { &guest.rx };
        hostile::offer(&guest.memory, driver, self.packed, number);
    }

    fn hostile(&mut self, input: &mut Input<'_>) {
        let memory = self.guests[HOSTILE].memory.clone();
        let shared = self.guests[HOSTILE].shared;
        // A guest may do to its own memory what it likes; outside of it there is nothing to write to.
        match input.byte() % 16 {
            0..5 => {
                let table = match input.byte() % 4 {
                    0 => self.queue(false).desc,
                    1 | 2 => self.queue(true).desc,
                    _ => TABLES,
                };
                let at = table + 16 * (u64::from(input.byte()) % 10);
                let gpa = match input.byte() % 8 {
                    0 => TABLES,
                    1 => input.wide(),
                    2 => MEMORY as u64 - input.within(0, 64),
                    3 => input.within(0, RING_AREA * 2),
                    _ => BUFFERS + 256 * input.within(0, 64),
                };
                let len = match input.byte() % 8 {
                    0 => input.wide() as u32,
                    1 => 16 * (input.within(0, 20) as u32),
                    _ => input.within(0, 2000) as u32,
                };
                let (flags, next) = (input.byte(), input.byte());
                let flags = u16::from(if flags < 200 { flags % 4 } else { flags % 16 });
                let _ = memory.write_u64(at, gpa);
                let _ = memory.write_u32(at + 8, len);
                if self.packed {
                    let bits = [0, 0x80, 0x8000, 0x8080][usize::from(next % 4)];
                    let _ = memory.write_u16(at + 12, u16::from(next / 4));
                    let _ = memory.write_u16(at + 14, flags | bits);
                } else {
                    let _ = memory.write_u16(at + 12, flags);
                    let _ = memory.write_u16(at + 14, u16::from(next % 10));
                }
            }
            5..9 => {
                // By the rules of the available ring, whatever the head is.
                let transmit = input.flag();
                let head = u16::from(input.byte());
                self.offer(transmit, if head < 240 { head % FEW } else { head << 8 });
            }
            9 => {
                let queue = self.queue(input.flag());
                let (avail_end, used_end) = (4 + 2 * u64::from(queue.size), 4 + 8 * u64::from(queue.size));
                let fields = [0, 2, avail_end].map(|at| queue.avail + at);
                let fields = [fields, [0, 2, used_end].map(|at| queue.used + at)].concat();
                let at = fields[usize::from(input.byte()) % fields.len()];
                let _ = memory.write_u16(at, input.wide() as u16);
            }
            10 => {
                let _ = memory.write_u64(input.within(0, RING_AREA * 2), input.wide());
            }
            11 => shared.msix.write(input.within(0, 40) * 4, 4, input.wide()),
            12 if input.flag() => shared.kick(u16::from(input.byte())),
            12 => {
                // One queue is reset; perhaps it is set up again, in whatever way, before that is done or after.
                let index = u16::from(input.byte() % 4);
                shared.reset_queue(index);
                if input.flag() {
                    self.turn();
                    assert!(shared.queue_reset_done(index), "no request is out");
                }
                let mut queue = self.queue(index % 2 == 1);
                if input.byte().is_multiple_of(4) {
                    (queue.size, queue.desc) = (input.wide() as u16, input.wide());
                }
                if input.flag() {
                    shared.configure_queue(index, &queue);
                }
            }
            13 => {
                // Frames of its own making: somebody's source address, any destination, any header.
                let macs = [self.guests[0].mac, self.guests[1].mac, self.guests[2].mac, BROADCAST];
                let (to, from) = (macs[usize::from(input.byte() % 4)], macs[usize::from(input.byte() % 4)]);
                let mut frame = self.guests[HOSTILE].frame(to, input.within(14, 1600) as usize, input.byte());
                frame[6..12].copy_from_slice(&from);
                for _ in 0..input.byte() % 8 {
                    let at = input.within(0, frame.len() as u64) as usize;
                    frame[at] = input.byte();
                }
                let mut header = [0; net::offload::HEADER_BYTES];
                if input.byte().is_multiple_of(4) {
                    header.fill_with(|| input.byte());
                } else if input.flag() {
                    // What a driver asks for of TCP over IPv4.
                    header = [1, input.byte() % 2, 0, 0, input.byte(), input.byte() % 8, 34, 0, 16, 0, 0, 0];
                    let length = (frame.len() as u16).saturating_sub(14).to_be_bytes();
                    if let Some(packet) = frame.get_mut(12..48) {
                        packet[..6].copy_from_slice(&[8, 0, 0x45, 0, length[0], length[1]]);
                        (packet[8], packet[9], packet[11], packet[34]) = (0, 0, 6, 0x50);
                    }
                }
                let mut bytes = header.to_vec();
                bytes.extend_from_slice(&frame);
                let slot = u64::from(input.byte()) % u64::from(FEW);
                let gpa = BUFFERS + 0x10_0000 + 0x1000 * slot;
                let _ = memory.write(gpa, &bytes);
                let at = if self.packed {
                    self.guests[HOSTILE].tx.to_offer(slot as u16).0
                } else {
                    self.queue(true).desc + 16 * slot
                };
                let _ = memory.write_u64(at, gpa);
                let _ = memory.write_u32(at + 8, bytes.len() as u32);
                // In a packed ring this is the id, and the flags come after it.
                let _ = memory.write_u16(at + 12, 0);
                if self.packed {
                    let _ = memory.write_u16(at + 14, 0);
                }
                self.offer(true, slot as u16);
            }
            14 => {
                // Another layout of its queues, which counts from the next start on.
                let index = u16::from(input.byte() % 4);
                let mut queue = self.queue(input.flag());
                queue.size = input.wide() as u16;
                queue.desc = input.wide();
                shared.request_reset();
                self.turn();
                if shared.reset_done() && shared.configure_queue(index, &queue) {
                    shared.activate(if input.flag() { input.wide() } else { shared.negotiated() });
                }
            }
            _ => self.restart(HOSTILE),
        }
    }
}

impl play::World for World {
    /// All devices start anew. The hostile guest's queues are asked for in the way that the input says.
    fn begin(&mut self, requests: Requests) {
        for port in 0..self.guests.len() {
            if self.attached {
                assert!(matches!(self.command(Command::Detach { slot: port }), Reply::Detached(_)));
            }
            let guest = &mut self.guests[port];
            guest.shared.restart();
            for area in 0..2 {
                guest.memory.zero(TABLES + area * 0x8_0000, 0x400 * u64::from(FEW)).expect("in its memory");
            }
            guest.start();
            self.attach(port, if port == HOSTILE { requests } else { Requests::Poll });
        }
        self.attached = true;
        self.expected = Default::default();
        self.turn();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..9 => self.hostile(input),
            9..13 => {
                let from = 1 + usize::from(input.flag());
                let (to, len, count) = (input.byte(), input.within(60, 1515) as usize, 1 + input.byte() % 32);
                let cuts: Vec<usize> = (0..input.byte() % 4).map(|_| input.within(1, 1526) as usize).collect();
                self.send(from, to, len, count, &cuts);
            }
            13 => {
                for _ in 0..1 + input.byte() % 4 {
                    self.turn();
                }
                self.receive();
            }
            14 => {
                // An honest guest's driver is loaded anew, or sets one ring up anew; what it had not taken yet is gone.
                let port = 1 + usize::from(input.flag());
                self.check();
                if input.flag() {
                    self.restart(port);
                } else {
                    let transmit = input.flag();
                    self.resize(port, transmit);
                }
                self.expected[port - 1].clear();
            }
            _ => {
                self.now += input.within(0, 3000);
                self.turn();
            }
        }
    }

    /// The honest guests have everything that was for them, and nobody has done anything to them.
    fn check(&mut self) {
        for _ in 0..100 {
            self.turn();
            if self.expected.iter().all(VecDeque::is_empty) {
                break;
            }
            self.receive();
        }
        for port in 1..self.guests.len() {
            let lost = self.expected[port - 1].len();
            let guest = &self.guests[port];
            assert_eq!(lost, 0, "frames that guest {port} had buffers for");
            assert!(!guest.shared.needs_reset(), "guest {port} is honest");
            assert_eq!(guest.shared.faults().map(|(_, n)| n).sum::<u64>(), 0, "guest {port} is honest");
            let mut fence = [0; UNTOUCHED.len()];
            guest.memory.read(FENCE, &mut fence).expect("in its memory");
            assert!(fence == UNTOUCHED, "something was written to guest {port} where it had no buffer");
        }
        assert!(self.engine.visited_queues() <= 2 + HOSTILE_QUEUES, "one transmit queue of each honest guest");
    }

    /// The hostile guest behaves now: its device works.
    fn settle(&mut self) {
        self.restart(HOSTILE);
        self.post(1);
        let frame = self.guests[HOSTILE].frame(self.guests[1].mac, 99, 1);
        assert!(self.guests[HOSTILE].send(&frame, &[]));
        self.guests[HOSTILE].shared.kick(1);
        for _ in 0..4 {
            self.turn();
        }
        let mut got = false;
        while let Some((_, arrived)) = self.guests[1].receive_with() {
            got |= arrived == frame;
        }
        assert!(got, "after a reset a device works again");
    }
}

thread_local! {
    static WORLDS: RefCell<[Option<World>; 16]> = const { RefCell::new([const { None }; 16]) };
}

/// The target.
///
/// # Panics
/// The engine is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = usize::from(input.byte() % 16);
    let requests = play::requests(&mut input);
    WORLDS.with_borrow_mut(|worlds| {
        let world = worlds[kind].get_or_insert_with(|| {
            let mut features = SPLIT;
            features.set(Features::NET_MRG_RXBUF, kind & 1 == 0);
            features.set(Features::EVENT_IDX, kind & 2 == 0);
            let packed = if kind & 8 == 0 { features } else { features | Features::RING_PACKED };
            World::new([packed, packed, features], kind & 4 == 0)
        });
        play::play(world, requests, &mut input);
    });
}

crate::planted::tests!(honest_guests_lose_nothing_whatever_the_third_does, 256, 1..2000);
