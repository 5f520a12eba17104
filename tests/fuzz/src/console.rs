//! A conversation over two console devices. One driver does anything to its rings and its device. The other keeps the rules:
//! it opens and closes ports, sends output in pieces and gives buffers for input. Whatever happens: its streams arrive whole
//! and in order in both directions, nothing is written outside its buffers, it learns which ports are open; a reset is always
//! done; and the first one's console works again when its driver behaves.

use std::cell::RefCell;
use std::collections::VecDeque;

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{GuestWeight, PerDevice};
use engine::testing::Recorder;
use memory::GuestMemory;
use virtio::config::Features;
use virtio::shared::Shared;
use virtio::testing::{DriverQueue, MEMORY, set_up_interrupts};
use virtio_console::backend::{Config, Console};
use virtio_console::bell::Bell;
use virtio_console::device::{
    self, CONTROL_RECEIVE, CONTROL_TRANSMIT, MAX_PORTS, MULTIPORT, receive_queue, transmit_queue,
};
use virtio_console::ports::{Overflow, Port, Ports};
use virtio_console::wire::{ControlEnd, wire};

use crate::hostile::Hostile;
use crate::input::Input;
use crate::planted::planted;
use crate::play;

/// Slots of the two devices.
const HOSTILE: usize = 0;
const ORDERLY: usize = 1;
/// Bytes of the rings of a port.
const OUTPUT: usize = 64;
const INPUT: usize = 32;
/// Buffers of the orderly guest, a page each, apart from its rings and tables; and what is in them at first.
const BUFFERS: u64 = 0x2c_0000;
const PAGE: usize = 0x1000;
const PAGES: u64 = 0xc0;
const UNTOUCHED: u8 = 0xa5;
/// Buffers of a queue that the device has at most.
const POSTED: usize = 8;

/// Control messages (virtio 1.3 5.3.6.2).
const DEVICE_READY: u16 = 0;
const PORT_ADD: u16 = 1;
const PORT_READY: u16 = 3;
const CONSOLE_PORT: u16 = 4;
const PORT_OPEN: u16 = 6;
const PORT_NAME: u16 = 7;

fn names() -> [&'static str; MAX_PORTS] {
    ["", "commands", "trace"]
}

fn ports(overflow: Overflow) -> &'static Ports {
    let named = names().into_iter().skip(1).map(|name| Port::named(name.to_owned(), Overflow::Wait));
    Box::leak(Box::new(Ports::new(Port::console(overflow), named)))
}

/// A port, as the orderly guest and the control core know it.
#[derive(Default)]
struct Stream {
    /// Output that the control core has not read, and input that the guest has not got.
    output: VecDeque<u8>,
    input: VecDeque<u8>,
    /// What the device has said.
    added: bool,
    named: bool,
    open: bool,
}

/// The guest that keeps the rules.
struct Orderly {
    memory: GuestMemory,
    shared: &'static Shared,
    queues: Vec<DriverQueue>,
    features: Features,
    streams: [Stream; MAX_PORTS],
    /// The buffers that the device has of each queue: id, address, length, and whether the device writes it.
    sent: Vec<VecDeque<(u16, u64, usize, bool)>>,
    next: u64,
    serial: u8,
}

impl Orderly {
    fn start(&mut self) {
        let count = self.shared.device().queues;
        set_up_interrupts(&self.shared.msix, (0..=count).map(|entry| 0x60 + entry as u8));
        let size = self.shared.max_queue_size();
        self.queues = (0..count).map(|index| DriverQueue::new(&self.memory, index, size, self.features)).collect();
        self.sent = (0..count).map(|_| VecDeque::new()).collect();
        self.streams = Default::default();
        for (index, queue) in (0..).zip(&self.queues) {
            assert!(self.shared.configure_queue(index, &queue.config), "the device is idle");
        }
        assert!(self.shared.activate(self.features.bits()), "the features are offered");
        for port in 0..MAX_PORTS {
            self.post(receive_queue(port), 16);
        }
        (0..POSTED).for_each(|_| self.post(CONTROL_RECEIVE, 64));
        self.tell(u32::MAX, DEVICE_READY, 1);
    }

    fn page(&mut self) -> u64 {
        self.next += 1;
        let at = BUFFERS + self.next % PAGES * PAGE as u64;
        self.memory.write(at, &[UNTOUCHED; PAGE]).expect("in its memory");
        at
    }

    fn offer(&mut self, queue: u16, at: u64, len: usize, chain: &[(u64, u32, bool)]) {
        let driver = &mut self.queues[usize::from(queue)];
        let Some(id) = driver.add(chain) else { return };
        if driver.kick_prepare() {
            self.shared.kick(queue);
        }
        self.sent[usize::from(queue)].push_back((id, at, len, chain[0].2));
    }

    /// Gives the device a buffer to write.
    fn post(&mut self, queue: u16, len: usize) {
        if self.sent[usize::from(queue)].len() < POSTED {
            let at = self.page();
            self.offer(queue, at, len, &[(at, len as u32, true)]);
        }
    }

    fn tell(&mut self, id: u32, event: u16, value: u16) {
        self.collect(CONTROL_TRANSMIT);
        let at = self.page();
        let message = [&id.to_le_bytes()[..], &event.to_le_bytes(), &value.to_le_bytes()].concat();
        self.memory.write(at, &message).expect("in its memory");
        self.offer(CONTROL_TRANSMIT, at, message.len(), &[(at, message.len() as u32, false)]);
    }

    /// Sends output, divided among buffers as the input says.
    fn send(&mut self, port: usize, len: usize, input: &mut Input<'_>) {
        let queue = transmit_queue(port);
        self.collect(queue);
        if len == 0 || self.sent[usize::from(queue)].len() >= POSTED {
            return;
        }
        let at = self.page();
        let bytes: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(3) ^ self.serial).collect();
        self.serial = self.serial.wrapping_add(1);
        self.memory.write(at, &bytes).expect("in its memory");
        let (mut chain, mut done) = (Vec::new(), 0);
        for _ in 0..input.byte() % 4 {
            let part = (1 + input.within(0, 40) as usize).min(len - done);
            if part == 0 || part == len - done {
                break;
            }
            chain.push((at + done as u64, part as u32, false));
            done += part;
        }
        chain.push((at + done as u64, (len - done) as u32, false));
        self.offer(queue, at, len, &chain);
        self.streams[port].output.extend(bytes);
    }

    /// Takes what the device has used of a queue: what it has written there. Buffers come back in their order.
    fn collect(&mut self, queue: u16) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some((id, written)) = self.queues[usize::from(queue)].take_used() {
            let (expected, at, len, writable) =
                self.sent[usize::from(queue)].pop_front().expect("a buffer that the device has");
            assert_eq!(id, expected, "each buffer comes back once, in order");
            assert!(written as usize <= if writable { len } else { 0 }, "{written} bytes in a buffer of {len}");
            let mut page = vec![0; PAGE];
            self.memory.read(at, &mut page).expect("in its memory");
            let end = if writable { written as usize } else { len };
            assert!(page[end..].iter().all(|byte| *byte == UNTOUCHED), "written outside of a buffer");
            page.truncate(written as usize);
            all.push(page);
        }
        all
    }

    /// Takes messages and input, and answers as Linux does.
    fn receive(&mut self) {
        for message in self.collect(CONTROL_RECEIVE) {
            assert!(message.len() >= 8, "a control message of {} bytes", message.len());
            let word = |at: usize| u16::from_le_bytes([message[at], message[at + 1]]);
            let (id, event, value) = (usize::from(word(0)), word(4), word(6));
            assert!(id < MAX_PORTS && word(2) == 0, "port {id}");
            let stream = &mut self.streams[id];
            match event {
                PORT_ADD => {
                    assert!(!core::mem::replace(&mut stream.added, true), "port {id} is added once");
                    self.tell(id as u32, PORT_READY, 1);
                    self.tell(id as u32, PORT_OPEN, 1);
                }
                CONSOLE_PORT => assert!(id == 0 && stream.added && value == 1),
                PORT_NAME => {
                    assert!(id != 0 && stream.added && message[8..] == *names()[id].as_bytes());
                    stream.named = true;
                }
                PORT_OPEN => stream.open = value == 1,
                _ => panic!("a message with event {event}"),
            }
            self.post(CONTROL_RECEIVE, 64);
        }
        for port in 0..MAX_PORTS {
            for bytes in self.collect(receive_queue(port)) {
                for byte in bytes {
                    assert_eq!(self.streams[port].input.pop_front(), Some(byte), "input arrives whole and in order");
                }
            }
        }
    }
}

/// The guests, the engine and the control core's ends.
struct World {
    engine: Box<Engine<Console, PerDevice, &'static Recorder>>,
    interrupts: &'static Recorder,
    bell: &'static Bell,
    hostile: Hostile,
    orderly: Orderly,
    ports: [&'static Ports; 2],
    ends: [Vec<ControlEnd>; 2],
    now: u64,
    attached: bool,
}

impl World {
    /// Bits of `kind`: whether the hostile driver takes control queues, and EVENT_IDX; whether the other one takes
    /// EVENT_IDX.
    fn new(kind: usize) -> Self {
        let bell: &Bell = Box::leak(Box::default());
        let interrupts: &Recorder = Box::leak(Box::default());
        let control = Box::leak(Box::new(Control::new()));
        let shared = || -> &'static Shared { Box::leak(Box::new(Shared::new(device::config(MAX_PORTS)))) };
        let devices = [shared(), shared()];
        let features = |without: Features| Features::from_bits_retain(devices[0].offered()).difference(without);
        let event = |bit: usize| if kind >> bit & 1 == 0 { Features::EVENT_IDX } else { Features::empty() };
        let multiport = if kind & 1 == 0 { Features::from_bits_retain(MULTIPORT) } else { Features::empty() };
        let orderly = Orderly {
            memory: memory::guest::testing::memory(0, MEMORY),
            shared: devices[ORDERLY],
            queues: Vec::new(),
            features: features(event(2)),
            streams: Default::default(),
            sent: Vec::new(),
            next: 0,
            serial: 0,
        };
        Self {
            engine: Box::new(Engine::new(control, Console::new(bell), PerDevice::new(16), interrupts)),
            interrupts,
            bell,
            hostile: Hostile::new(devices[HOSTILE], features(multiport | event(1))),
            orderly,
            ports: [ports(Overflow::DropAfter(10)), ports(Overflow::Wait)],
            ends: Default::default(),
            now: 0,
            attached: false,
        }
    }

    fn turn(&mut self) {
        self.now += 1;
        self.engine.turn(self.now);
        self.interrupts.take();
    }

    fn command(&mut self, command: Command<Config>) -> Reply {
        play::command(self.engine.control(), command, || self.turn())
    }

    fn attach(&mut self, slot: usize, requests: Requests) {
        let mut ends = [const { None }; MAX_PORTS];
        self.ends[slot].clear();
        for end in &mut ends {
            let (engine, control) = wire(OUTPUT, INPUT);
            *end = Some(engine);
            self.ends[slot].push(control);
        }
        let (shared, memory) = match slot {
            HOSTILE => (self.hostile.shared, self.hostile.memory.clone()),
            _ => (self.orderly.shared, self.orderly.memory.clone()),
        };
        let attachment = Attachment {
            slot,
            number: slot,
            shared,
            memory,
            requests,
            share: GuestWeight::of_guest(slot),
            config: Config { ports: self.ports[slot], ends },
            state: None,
        };
        assert_eq!(self.command(Command::Attach(attachment)), Reply::Attached);
    }

    /// Turns until the orderly guest knows all its ports.
    fn greet(&mut self) {
        for _ in 0..20 {
            self.turn();
            self.orderly.receive();
        }
        let known = self.orderly.streams.iter().zip(names()).all(|(s, name)| s.added && s.named != name.is_empty());
        assert!(known && self.ports[ORDERLY].all().iter().all(Port::is_guest_open), "each port is known and open");
    }

    /// The control core reads output of the orderly guest.
    fn read(&mut self, port: usize, most: usize) {
        let mut bytes = vec![0; most];
        let count = self.ends[ORDERLY][port].read(&mut bytes);
        if planted() && count > 0 {
            bytes[0] ^= 1;
        }
        for byte in &bytes[..count] {
            let expected = self.orderly.streams[port].output.pop_front();
            assert_eq!(expected, Some(*byte), "output arrives whole and in order");
        }
    }
}

impl play::World for World {
    /// All devices start anew.
    fn begin(&mut self, requests: Requests) {
        if self.attached {
            for slot in [HOSTILE, ORDERLY] {
                assert!(matches!(self.command(Command::Detach { slot }), Reply::Detached(_)));
            }
        }
        for (shared, ports) in [self.hostile.shared, self.orderly.shared].into_iter().zip(self.ports) {
            shared.restart();
            ports.restart();
            ports.all().iter().for_each(|port| port.set_open(port.name().is_empty()));
        }
        self.hostile.start();
        self.orderly.start();
        self.attach(HOSTILE, requests);
        self.attach(ORDERLY, Requests::Poll);
        self.attached = true;
        self.greet();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let port = usize::from(input.byte()) % MAX_PORTS;
        match input.byte() % 16 {
            0..6 => {
                let Self { engine, hostile, now, .. } = self;
                hostile.step(input, &mut || {
                    *now += 1;
                    engine.turn(*now);
                });
            }
            6 => {
                // A control message of any kind.
                let id = if input.byte() < 32 { input.wide() as u32 } else { u32::from(input.byte() % 5) };
                let message = [&id.to_le_bytes()[..], &[input.byte() % 9, 0, input.byte() % 3, 0]].concat();
                let _ = self.hostile.memory.write(Hostile::buffer(input.byte().into()), &message);
            }
            7 => {
                // The control core at the hostile guest's ports.
                let bytes: Vec<u8> = (0..input.byte() % 48).map(|_| input.byte()).collect();
                self.ends[HOSTILE][port].write(&bytes);
                self.ends[HOSTILE][port].read(&mut [0; 48]);
                if let Some(port) = self.ports[HOSTILE].get(port) {
                    port.set_open(input.flag());
                }
                self.bell.ring(if input.flag() { HOSTILE } else { usize::from(input.byte()) });
            }
            8 | 9 => {
                let len = input.within(0, 300) as usize;
                self.orderly.send(port, len, input);
            }
            10 => self.read(port, usize::from(input.byte())),
            11 => {
                let bytes: Vec<u8> = (0..input.byte() % 48).map(|n| n ^ 0x5a).collect();
                let count = self.ends[ORDERLY][port].write(&bytes);
                self.orderly.streams[port].input.extend(&bytes[..count]);
                self.bell.ring(ORDERLY);
            }
            12 => self.orderly.post(receive_queue(port), 1 + usize::from(input.byte() % 40)),
            13 => {
                for _ in 0..1 + input.byte() % 4 {
                    self.turn();
                }
                self.orderly.receive();
            }
            14 if input.flag() => {
                let open = input.flag();
                if input.flag() {
                    self.orderly.tell(port as u32, PORT_OPEN, open.into());
                } else if let Some(port) = self.ports[ORDERLY].get(port) {
                    port.set_open(open);
                    self.bell.ring(ORDERLY);
                }
                self.turn();
            }
            14 => {
                // Its driver is loaded anew. What was taken before is still to be read; what was not, never comes.
                self.orderly.shared.request_reset();
                (0..4).for_each(|_| self.turn());
                assert!(self.orderly.shared.reset_done(), "a reset is always done");
                (0..MAX_PORTS).for_each(|port| self.read(port, OUTPUT));
                self.orderly.start();
                self.greet();
            }
            _ => {
                self.now += input.within(0, 30);
                self.turn();
            }
        }
    }

    /// All streams of the orderly guest have arrived, and nobody has done anything to it.
    fn check(&mut self) {
        for port in 0..MAX_PORTS {
            self.orderly.tell(port as u32, PORT_OPEN, 1);
            self.turn();
        }
        for _ in 0..400 {
            for port in 0..MAX_PORTS {
                self.orderly.post(receive_queue(port), 32);
                self.read(port, OUTPUT);
            }
            self.turn();
            self.orderly.receive();
            (0..MAX_PORTS).for_each(|port| drop(self.orderly.collect(transmit_queue(port))));
        }
        for (port, stream) in self.orderly.streams.iter().enumerate() {
            assert_eq!((stream.output.len(), stream.input.len()), (0, 0), "bytes of port {port} that did not arrive");
            let open = self.ports[ORDERLY].get(port).is_some_and(Port::is_open);
            assert_eq!(stream.open, open, "the guest knows whether port {port} is open");
            assert!(self.orderly.sent[usize::from(transmit_queue(port))].is_empty(), "output without an answer");
        }
        assert!(!self.orderly.shared.needs_reset(), "the second guest keeps the rules");
        assert_eq!(self.orderly.shared.faults().map(|(_, n)| n).sum::<u64>(), 0, "the second guest keeps the rules");
    }

    /// The hostile driver behaves now: its console works.
    fn settle(&mut self) {
        let Self { engine, hostile, now, .. } = self;
        hostile.restart(&mut || {
            *now += 1;
            engine.turn(*now);
        });
        self.ends[HOSTILE][0].read(&mut [0; OUTPUT]);
        let at = Hostile::buffer(0);
        self.hostile.memory.write(at, b"again").expect("in its memory");
        assert!(self.hostile.queue(1).add(&[(at, 5, false)]).is_some(), "the queue is empty");
        self.hostile.shared.kick(1);
        (0..4).for_each(|_| self.turn());
        let mut bytes = [0; OUTPUT];
        let count = self.ends[HOSTILE][0].read(&mut bytes);
        assert_eq!(&bytes[..count], b"again", "after a reset a console works again");
    }
}

thread_local! {
    static WORLDS: RefCell<[Option<World>; 8]> = const { RefCell::new([const { None }; 8]) };
}

/// The target.
///
/// # Panics
/// The back-end is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = usize::from(input.byte() % 8);
    let requests = play::requests(&mut input);
    WORLDS.with_borrow_mut(|worlds| {
        let world = worlds[kind].get_or_insert_with(|| World::new(kind));
        play::play(world, requests, &mut input);
    });
}

crate::planted::tests!(streams_arrive_whole_whatever_another_driver_does, 256, 1..2000);
