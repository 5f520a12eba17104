//! A conversation over the engine's switch in which one driver does whatever it likes to its rings, its interrupts and its
//! device, and two honest ones talk to each other meanwhile, and to somebody outside, by an uplink. Ports and uplink have rules.
//! Devices are detached and attached again, with their state and without it. Whatever happens: what the honest ones send arrives
//! whole and in order as long as they had buffers for it, nothing is written where nobody asked for it, their devices stay
//! good, a reset is always done, nothing of a detached device is held, and the other one gets its device back whenever it behaves.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, Limits, PerDevice};
use net::backend::Net;
use net::features::Features;
use net::port::Port;
use net::testing::{BROADCAST, BUFFERS, DriverQueue, Guest, MEMORY, RING_AREA, Recorder, SPLIT, TABLES};
use net::uplink::Uplink;
use nic::Refused;
use virtio::config::QueueConfig;
use virtio::shared::Shared;
use virtio::state::{BadState, DeviceState};
use virtio::testing::set_up_interrupts;

use crate::hostile;
use crate::input::Input;
use crate::planted::planted;
use crate::play::{self, World as _};

mod frames;
mod rules;
mod wire;

use rules::{All, HZ, Scene};
use wire::{Incoming, OUTSIDE, TestNic, Wire};

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
/// Queue pairs of the hostile guest's device, and the number of its control queue.
const PAIRS: u16 = 2;
const CONTROL: u16 = 2 * PAIRS;
/// Of the five queues that the hostile guest sets up, those that are visited: for sending, and for commands.
const HOSTILE_QUEUES: u32 = 3;
/// Addresses that the hostile guest names.
const NAMES: [[u8; 6]; 8] = [
    [2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2],
    [2, 0, 0, 0, 0, 3],
    BROADCAST,
    [1, 0, 0x5e, 0, 0, 5],
    [2, 0, 0, 0, 9, 9],
    [2, 0xbb, 0, 0, 0, 9],
    wire::OWN,
];
/// Frames that the NIC takes if it is not full.
const ROOM: usize = 1 << 20;
/// Slots of an engine between two places of a device.
const OTHER_SLOT: usize = 3;

/// The guests and the engine between them. They are made once for each way to negotiate, because tests' memory is never
/// given back; a run begins by starting all devices anew.
struct World {
    engine: Box<Engine<Net<TestNic>, Chosen, &'static Recorder>>,
    /// The NIC of the uplink, if there is one.
    wire: Option<Rc<RefCell<Wire>>>,
    rules: All,
    scene: Scene,
    interrupts: &'static Recorder,
    /// The hostile guest's rings are packed.
    packed: bool,
    guests: [Guest; 3],
    /// The slot of each guest's device.
    slots: [usize; 3],
    features: Features,
    /// The hostile guest's other queues: a second pair, and the control queue.
    more: [DriverQueue; 3],
    /// How much the hostile guest has offered in each of its queues since its last start.
    offered: [u16; 5],
    now: u64,
    serial: u32,
    /// Frames on their way between the honest guests, by receiver.
    expected: [VecDeque<Vec<u8>>; 2],
    /// Their frames to the outside, by sender.
    leaving: [VecDeque<Vec<u8>>; 2],
    /// The NIC may have refused some of those.
    lossy: bool,
    attached: bool,
}

impl World {
    fn new(features: [Features; 3], fine: bool, uplinks: u8) -> Self {
        let control: &Control<Port> = Box::leak(Box::default());
        let interrupts: &Recorder = Box::leak(Box::default());
        let limits = Limits { requests: 64, bytes: 64 << 10, quantum: 8, least: 4, stall: 2 };
        let schedule = if fine { Chosen::Fine(Fine::new(limits)) } else { Chosen::PerDevice(PerDevice::new(16)) };
        let guest = |number: u8, size| {
            let guest = Guest::new(number, features[usize::from(number) - 1], size, 1500);
            guest.memory.write(FENCE, &UNTOUCHED).expect("in its memory");
            guest
        };
        let mut guests = [guest(1, FEW), guest(2, MANY), guest(3, MANY)];
        // The hostile guest has a device with more queues.
        let device = net::device::config(guests[HOSTILE].mac, 1500, PAIRS);
        guests[HOSTILE].shared = Box::leak(Box::new(Shared::new(device)));
        let mut net = Net::new(0x5eed, 1000);
        let wire = (uplinks > 0).then(|| Rc::new(RefCell::new(Wire::default())));
        if let Some(wire) = &wire {
            let uplink = Uplink::new(TestNic(wire.clone()), Box::leak(Box::default()), 1);
            assert!(net.add_uplink(if uplinks > 1 { uplink.with_policy(All::uplink()) } else { uplink }));
            assert!(uplinks < 3 || net.add_missing_uplink(None));
        }
        let rules = All::new([0, 1, 2].map(|n: usize| guests[n].mac));
        let memory = guests[HOSTILE].memory.clone();
        Self {
            engine: Box::new(Engine::new(control, net, schedule, interrupts)),
            wire,
            scene: rules.scene(0),
            rules,
            interrupts,
            packed: features[HOSTILE].contains(Features::RING_PACKED),
            guests,
            slots: [0, 1, 2],
            features: features[HOSTILE],
            more: [2, 3, CONTROL].map(|index| DriverQueue::new(&memory, index, FEW, features[HOSTILE].ring())),
            offered: [0; 5],
            now: 0,
            serial: 0,
            expected: Default::default(),
            leaving: Default::default(),
            lossy: false,
            attached: false,
        }
    }

    fn command(&mut self, command: Command<Port>) -> Reply {
        let mut turns = 0;
        let reply = play::command(self.engine.control(), command, || {
            turns += 1;
            if turns > 2
                && let Some(wire) = &self.wire
            {
                wire.borrow_mut().stuck = false;
            }
            self.now += 1;
            self.engine.turn(self.now);
            self.interrupts.take();
        });
        if let (Reply::Detached(_), Some(wire)) = (&reply, &self.wire)
            && self.attached_devices() == 0
        {
            assert_eq!(wire.borrow().held(), 0, "nothing of a detached device is held");
        }
        reply
    }

    fn attached_devices(&self) -> usize {
        self.slots.iter().filter(|slot| **slot != usize::MAX).count()
    }

    /// Detaches the device of a guest. Returns its state, if it can resume from it.
    fn detach(&mut self, port: usize, drain: bool) -> Option<DeviceState> {
        let slot = std::mem::replace(&mut self.slots[port], usize::MAX);
        match self.command(if drain { Command::Drain { slot } } else { Command::Detach { slot } }) {
            Reply::Detached(state) => state,
            reply => panic!("{reply:?}"),
        }
    }

    fn attach(&mut self, port: usize, slot: usize, requests: Requests, state: Option<DeviceState>) {
        let policy = if port == HOSTILE { self.scene.hostile } else { self.scene.honest[port - 1] };
        self.guests[port].port.policy = policy;
        let attach = |state, guest: &Guest| Command::Attach(Attachment { requests, state, ..guest.attachment(slot) });
        let reply = self.command(attach(state, &self.guests[port]));
        // A transport activates no device with features that it does not offer; this guest's harness does.
        if let Reply::BadState(BadState::Features(features)) = reply
            && port == HOSTILE
            && !self.guests[port].shared.accepts(features)
        {
            self.guests[port].shared.restart();
            self.start(port);
            assert_eq!(self.command(attach(None, &self.guests[port])), Reply::Attached);
        } else {
            assert_eq!(reply, Reply::Attached);
        }
        self.slots[port] = slot;
    }

    /// A device goes to another slot, as if to another engine. One that can resume goes on as if nothing had happened.
    fn move_device(&mut self, port: usize, drain: bool, requests: Requests) {
        self.check();
        let slot = self.slots[port];
        let other = if slot < OTHER_SLOT { slot + OTHER_SLOT } else { slot - OTHER_SLOT };
        let state = self.detach(port, drain);
        assert!(state.is_some() || !drain || port == HOSTILE, "an honest guest's device can resume");
        let state = state.filter(|_| drain);
        let resumes = state.is_some();
        if !resumes {
            self.guests[port].shared.restart();
            self.start(port);
        }
        self.attach(port, other, requests, state);
        if !resumes && port != HOSTILE {
            self.expected[port - 1].clear();
        }
        self.turn();
    }

    /// Sets up a guest's queues and interrupts, and sets DRIVER_OK.
    fn start(&mut self, port: usize) {
        if port != HOSTILE {
            return self.guests[port].start();
        }
        self.offered = [0; 5];
        let (features, guest) = (self.features, &mut self.guests[HOSTILE]);
        let queue = |index| DriverQueue::new(&guest.memory, index, FEW, features.ring());
        (guest.rx, guest.tx) = (queue(0), queue(1));
        self.more = [2, 3, CONTROL].map(queue);
        let shared = guest.shared;
        set_up_interrupts(&shared.msix, (0..=CONTROL as u8 + 1).map(|entry| self.guests[HOSTILE].vector(entry)));
        for index in 0..=CONTROL {
            assert!(shared.configure_queue(index, &self.driver(index).config), "the device is idle");
        }
        shared.set_config_vector(0);
        assert!(shared.activate(features.bits()));
    }

    /// A queue of the hostile guest.
    fn driver(&self, index: u16) -> &DriverQueue {
        match index {
            0 => &self.guests[HOSTILE].rx,
            1 => &self.guests[HOSTILE].tx,
            _ => &self.more[usize::from(index - 2) % 3],
        }
    }

    /// A turn of the engine. An honest guest that waits for frames has all its buffers posted at the beginning of each: the hostile one
    /// may fill hundreds of them in a few turns.
    fn turn(&mut self) {
        if self.expected.iter().any(|expected| !expected.is_empty()) {
            self.receive();
            (1..self.guests.len()).for_each(|port| self.post(port));
        }
        self.now += 1;
        self.engine.turn(self.now);
        self.interrupts.take();
    }

    /// The NIC gives nothing back.
    fn is_stuck(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.borrow().stuck)
    }

    /// The NIC gives back what it holds.
    fn let_go(&self) {
        if let Some(wire) = &self.wire {
            wire.borrow_mut().stuck = false;
        }
    }

    /// The device of `port` is reset, which is always done, and started.
    fn restart(&mut self, port: usize) {
        let shared = self.guests[port].shared;
        shared.request_reset();
        self.turn();
        self.let_go();
        for _ in 0..4 {
            self.turn();
        }
        assert!(shared.reset_done(), "a reset is always done");
        self.start(port);
        self.turn();
    }

    /// A queue of `port` is reset, which is always done, and set up.
    fn resize(&mut self, port: usize, transmit: bool) {
        self.let_go();
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
                2 | 3 if self.wire.is_some() => OUTSIDE,
                _ => self.guests[other].mac,
            };
            self.serial += 1;
            let mut frame = self.guests[from].frame(to, len, self.serial as u8);
            frame[14..18].copy_from_slice(&self.serial.to_le_bytes());
            // A portion is a few frames to all, so earlier ones may still wait.
            let mut sent = self.guests[from].send(&frame, cuts);
            for _ in 0..MANY {
                if sent || self.is_stuck() {
                    break;
                }
                self.turn();
                self.receive();
                self.post(other);
                sent = self.guests[from].send(&frame, cuts);
            }
            if !sent {
                // Completed is what was sent to guests; the NIC may hold the rest.
                assert!(self.is_stuck(), "what was sent before is completed");
                break;
            }
            if to == OUTSIDE {
                self.leaving[from - 1].push_back(frame);
            } else if to != self.guests[HOSTILE].mac {
                self.expected[other - 1].push_back(frame);
            }
        }
        // Polled queues with room for one portion a turn.
        for _ in 0..1 + count / 8 {
            self.turn();
        }
        self.receive();
    }

    /// What has arrived at the honest guests, and outside. The hostile one may have sent them something too.
    fn receive(&mut self) {
        if let Some(wire) = &self.wire {
            for frame in std::mem::take(&mut wire.borrow_mut().sent) {
                for leaving in &mut self.leaving {
                    let place = leaving.iter().position(|sent| *sent == frame);
                    assert!(place.is_none_or(|place| place == 0 || self.lossy), "frames leave in order");
                    if let Some(place) = place {
                        leaving.drain(..=place);
                    }
                }
            }
        }
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

    /// One of the hostile guest's queues: most often those of the first pair.
    fn any_queue(input: &mut Input<'_>) -> u16 {
        [0, 0, 1, 1, 1, 2, 3, CONTROL][usize::from(input.byte() % 8)]
    }

    fn queue(&self, index: u16) -> QueueConfig {
        self.driver(index).config
    }

    /// Offers a descriptor of the hostile guest's by the rules of its ring, or nearly.
    fn offer(&self, index: u16, number: u16) {
        hostile::offer(&self.guests[HOSTILE].memory, self.driver(index), self.packed, number);
    }

    /// Offers one descriptor with a buffer or a table, as a driver does.
    fn offer_buffer(&mut self, index: u16, gpa: u64, len: u32, flags: u16) {
        let (memory, count) = (&self.guests[HOSTILE].memory, &mut self.offered[usize::from(index)]);
        let number = *count % FEW;
        *count += 1;
        let queue = self.driver(index);
        let at = if self.packed { queue.to_offer(number).0 } else { queue.config.desc + 16 * u64::from(number) };
        let _ = memory.write_u64(at, gpa);
        let _ = memory.write_u32(at + 8, len);
        // In a packed ring this is the id, and the flags come after it.
        let _ = memory.write_u16(at + 12, if self.packed { number } else { flags });
        if self.packed {
            let _ = memory.write_u16(at + 14, flags);
        }
        self.offer(index, number);
    }

    /// The hostile guest sends a command by its control queue.
    fn command_of_guest(&mut self, input: &mut Input<'_>) {
        let command = frames::command(input, &NAMES);
        let memory = self.guests[HOSTILE].memory.clone();
        let (table, data) = (BUFFERS + 0x1f_0000, BUFFERS + 0x1f_1000);
        let _ = memory.write(data, &command);
        let (next, chained) = if self.packed { (0, 0) } else { (1, 1) };
        for (at, gpa, len, flags) in [(table, data, command.len() as u32, chained), (table + 16, data + 0x1000, 1, 2)] {
            let _ = memory.write_u64(at, gpa);
            let _ = memory.write_u32(at + 8, len);
            let (low, high) = if self.packed { (0, flags) } else { (flags, next) };
            let _ = memory.write_u16(at + 12, low);
            let _ = memory.write_u16(at + 14, high);
        }
        self.offer_buffer(CONTROL, table, 32, 4);
        self.guests[HOSTILE].shared.kick(CONTROL);
    }

    /// The hostile guest sends a frame, or the same one a few times.
    fn frames_of_guest(&mut self, input: &mut Input<'_>) {
        let (header, frame) = frames::frame(input, &NAMES);
        let bytes = [&header[..], &frame].concat();
        let index = if input.byte().is_multiple_of(4) { 3 } else { 1 };
        for _ in 0..1 + input.byte() % 8 {
            let slot = u64::from(self.offered[usize::from(index)] % FEW);
            let gpa = BUFFERS + 0x10_0000 + 0x1000 * slot;
            let _ = self.guests[HOSTILE].memory.write(gpa, &bytes);
            self.offer_buffer(index, gpa, bytes.len() as u32, 0);
        }
        if input.flag() {
            self.guests[HOSTILE].shared.kick(index);
        }
    }

    /// The hostile guest offers buffers for what comes.
    fn post_of_guest(&mut self, input: &mut Input<'_>) {
        let index = 2 * u16::from(input.byte().is_multiple_of(4));
        for _ in 0..1 + input.byte() % 8 {
            let slot = u64::from(self.offered[usize::from(index)] % FEW);
            let len = if input.flag() { BUFFER } else { input.within(0, 4000) as u32 };
            self.offer_buffer(index, BUFFERS + 0x1000 * slot, len, 2);
        }
    }

    /// Something happens outside.
    fn outside(&mut self, input: &mut Input<'_>) {
        let Some(wire) = self.wire.clone() else { return };
        match input.byte() % 8 {
            0 => wire.borrow_mut().stuck = input.flag(),
            1 => {
                let mut wire = wire.borrow_mut();
                wire.room = usize::from(input.byte() % 64);
                self.lossy = true;
            }
            2 => {
                let mut wire = wire.borrow_mut();
                (wire.down, wire.changed) = (input.flag(), true);
                self.lossy = true;
            }
            3 => {
                let mut wire = wire.borrow_mut();
                wire.offloads = input.flag();
                let refusals = [None, Some(Refused::Offload), Some(Refused::Length), Some(Refused::Full)];
                wire.refuses = refusals[usize::from(input.byte() % 4)];
            }
            4 | 5 => {
                // Anything from outside, as often as it takes to fill a receiver's buffers.
                for _ in 0..1 + input.byte() % 16 {
                    let (_, mut frame) = frames::frame(input, &NAMES);
                    if let Some(from) = frame.get_mut(6..12).filter(|_| input.flag()) {
                        from.copy_from_slice(&[2, 0xbb, 0, 0, 0, 9]);
                    }
                    let pieces = frame.chunks(1 + input.within(13, 2000) as usize).map(<[u8]>::to_vec).collect();
                    let vlan = input.byte().is_multiple_of(4).then(|| u16::from(input.byte() % 9));
                    wire.borrow_mut().inbox.push_back(Incoming { pieces, vlan, good: input.flag() });
                }
                self.post(1);
                self.post(2);
                self.turn();
                self.receive();
            }
            _ => {
                // Somebody outside sends to an honest guest, which has buffers.
                self.check();
                let port = 1 + usize::from(input.flag());
                self.post(port);
                for _ in 0..1 + input.byte() % 16 {
                    self.serial += 1;
                    let len = input.within(60, 1515) as usize;
                    let mut frame = [&self.guests[port].mac[..], &OUTSIDE, &[0x88, 0xb5]].concat();
                    frame.extend(self.serial.to_le_bytes());
                    frame.extend((frame.len()..len).map(|i| i as u8));
                    let pieces = frame.chunks(1 + input.within(13, 2000) as usize).map(<[u8]>::to_vec).collect();
                    wire.borrow_mut().inbox.push_back(Incoming { pieces, vlan: None, good: false });
                    if self.scene.outside {
                        self.expected[port - 1].push_back(frame);
                    }
                }
                self.turn();
                self.receive();
            }
        }
    }

    fn hostile(&mut self, input: &mut Input<'_>) {
        let memory = self.guests[HOSTILE].memory.clone();
        let shared = self.guests[HOSTILE].shared;
        // A guest may do to its own memory what it likes; outside of it there is nothing to write to.
        match input.byte() % 16 {
            0..2 => {
                let table =
                    if input.byte().is_multiple_of(4) { TABLES } else { self.queue(Self::any_queue(input)).desc };
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
            2 | 3 => {
                // By the rules of the available ring, whatever the head is.
                let index = Self::any_queue(input);
                let head = u16::from(input.byte());
                self.offer(index, if head < 240 { head % FEW } else { head << 8 });
            }
            4 | 5 => self.command_of_guest(input),
            6 | 7 => self.post_of_guest(input),
            8 | 13 => self.frames_of_guest(input),
            9 => {
                let queue = self.queue(Self::any_queue(input));
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
                let index = u16::from(input.byte() % (CONTROL as u8 + 1));
                shared.reset_queue(index);
                if input.flag() {
                    self.let_go();
                    self.turn();
                    assert!(shared.queue_reset_done(index), "no request is out");
                }
                let mut queue = self.queue(index);
                if input.byte().is_multiple_of(4) {
                    (queue.size, queue.desc) = (input.wide() as u16, input.wide());
                }
                if input.flag() {
                    shared.configure_queue(index, &queue);
                }
            }
            14 => {
                // Another layout of its queues, which counts from the next start on.
                let index = u16::from(input.byte() % (CONTROL as u8 + 1));
                let mut queue = self.queue(Self::any_queue(input));
                queue.size = input.wide() as u16;
                queue.desc = input.wide();
                shared.request_reset();
                self.turn();
                if shared.reset_done() && shared.configure_queue(index, &queue) {
                    // A device whose frames can leave does not offer IN_ORDER.
                    let all = if self.wire.is_some() { !Features::IN_ORDER.bits() } else { u64::MAX };
                    shared.activate(if input.flag() { input.wide() & all } else { shared.negotiated() });
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
                self.detach(port, false);
            }
        }
        if let Some(wire) = &self.wire {
            *wire.borrow_mut() = Wire::default();
            wire.borrow_mut().room = ROOM;
        }
        // All limits are as after silence.
        self.now += 1000 * HZ;
        for port in 0..self.guests.len() {
            let guest = &mut self.guests[port];
            guest.shared.restart();
            for area in 0..2 {
                guest.memory.zero(TABLES + area * 0x8_0000, 0x400 * u64::from(FEW)).expect("in its memory");
            }
            self.start(port);
            self.attach(port, port, if port == HOSTILE { requests } else { Requests::Poll }, None);
        }
        self.attached = true;
        self.lossy = false;
        self.leaving = Default::default();
        self.expected = Default::default();
        self.turn();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 32 {
            0..16 => self.hostile(input),
            16 | 17 => self.outside(input),
            18 => {
                let (port, drain) = (usize::from(input.byte() % 3), input.flag());
                let requests = if port == HOSTILE { play::requests(input) } else { Requests::Poll };
                self.move_device(port, drain, requests);
            }
            19..26 => {
                let from = 1 + usize::from(input.flag());
                let (to, len, count) = (input.byte(), input.within(60, 1515) as usize, 1 + input.byte() % 32);
                let cuts: Vec<usize> = (0..input.byte() % 4).map(|_| input.within(1, 1526) as usize).collect();
                self.send(from, to, len, count, &cuts);
            }
            26..28 => {
                for _ in 0..1 + input.byte() % 4 {
                    self.turn();
                }
                self.receive();
            }
            28 => {
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
        for _ in 0..MANY {
            self.turn();
            if self.expected.iter().chain(&self.leaving).all(VecDeque::is_empty) {
                break;
            }
            self.receive();
        }
        let left = self.leaving.iter().all(VecDeque::is_empty);
        assert!(left || self.lossy || !self.scene.outside, "frames to the outside leave");
        self.leaving = Default::default();
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
        // Nobody has rules now, and a frame gets to a guest whatever it was before.
        self.scene = self.rules.scene(0);
        for port in 0..self.guests.len() {
            self.move_device(port, false, Requests::Poll);
        }
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
    let scene = input.byte();
    let requests = play::requests(&mut input);
    WORLDS.with_borrow_mut(|worlds| {
        // A world in which something was found is not used again.
        let mut world = worlds[kind].take().unwrap_or_else(|| {
            // None, one, one with rules, and a second one whose NIC is missing.
            let uplinks = [1, 2, 3, 0][(kind ^ (kind / 4)) % 4];
            let mut features = if uplinks > 0 { SPLIT.difference(Features::IN_ORDER) } else { SPLIT };
            features.set(Features::NET_MRG_RXBUF, kind & 1 == 0);
            features.set(Features::EVENT_IDX, kind & 2 == 0);
            let packed = if kind & 8 == 0 { features } else { features | Features::RING_PACKED };
            // The last one takes nothing that it would have to finish, so offloads are done for it.
            let plain = features.difference(
                Features::NET_GUEST_CSUM
                    .union(Features::NET_GUEST_TSO4)
                    .union(Features::NET_GUEST_TSO6)
                    .union(Features::NET_GUEST_ECN),
            );
            World::new([packed, packed, plain], kind & 4 == 0, uplinks)
        });
        world.scene = world.rules.scene(scene);
        play::play(&mut world, requests, &mut input);
        worlds[kind] = Some(world);
    });
}

crate::planted::tests!(honest_guests_lose_nothing_whatever_the_third_does, 256, 1..2000);
