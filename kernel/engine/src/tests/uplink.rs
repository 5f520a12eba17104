//! Frames between guests and a NIC: one made for these tests, which keeps what it is handed until it is told to let go.

#![allow(unsafe_code, reason = "reads what the engine says a NIC may read")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nic::{Checked, Filtered, Limits, Link, Nic, Offload, Outcome, Outgoing, Received, Refused, Statistics, Unicast, ReceiveFilter};

use super::{LEAVING, Bench};
use crate::control::{Command, Reply};
use crate::policy::Policy;
use crate::shared::Phase;
use crate::stats::UplinkCounters;
use crate::testing::{BROADCAST, Guest};
use crate::uplink::{Held, Uplink};

pub const OUTSIDE: [u8; 6] = [0x02, 0xaa, 0, 0, 0, 9];

#[derive(Default)]
pub struct Wire {
    /// Frames from outside, in pieces.
    pub inbox: VecDeque<Vec<Vec<u8>>>,
    /// Those of its other receive queues.
    pub more: Vec<VecDeque<Vec<Vec<u8>>>>,
    /// What is said of their checksums.
    pub good: bool,
    /// Frames that left.
    pub sent: Vec<Vec<u8>>,
    /// Bytes of each that the engine had copied.
    pub headers: Vec<usize>,
    /// What it was asked to do to each.
    pub asked: Vec<Offload>,
    /// What it says when it is asked for an offload; None: it does as it is asked.
    pub refuses: Option<Refused>,
    /// Whether it says that it does offloads.
    pub offloads: bool,
    /// What is held of guests.
    held: Vec<Held>,
    /// Whether it lets go of that.
    pub lets_go: bool,
    /// How many it still takes.
    pub room: usize,
    flushes: usize,
    pub up: bool,
    /// For whom it was told to let unicasts in, each time; None: for everybody.
    pub set_receive_filter: Vec<Option<Vec<[u8; 6]>>>,
    /// By which queues it was last told to have them come.
    pub queues: Vec<Unicast>,
    /// The same of multicasts.
    pub groups: Vec<Option<Vec<[u8; 6]>>>,
    /// The tag (TCI) that it has taken out of what comes.
    pub stripped: Option<u16>,
    statistics: Statistics,
}

impl Wire {
    /// With so many receive queues.
    pub fn of(queues: usize) -> Self {
        Self { more: vec![VecDeque::new(); queues - 1], ..Self::default() }
    }
}

pub struct TestNic(pub Rc<RefCell<Wire>>);

impl Nic for TestNic {
    type Token = Held;

    fn address(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 0xff]
    }
    fn limits(&self) -> Limits {
        Limits {
            receive_queues: 1 + self.0.borrow().more.len() as u16,
            transmit_queues: 1,
            max_frame: 1518,
            max_header: 128,
            max_segments: 8,
            offloads: self.0.borrow().offloads,
        }
    }
    fn link(&self) -> Link {
        if self.0.borrow().up { Link::Up(10_000) } else { Link::Down }
    }
    fn statistics(&self) -> Statistics {
        self.0.borrow().statistics
    }
    fn service(&mut self, _: u64) -> bool {
        false
    }
    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        let mut wire = self.0.borrow_mut();
        wire.set_receive_filter.push((!wanted.promiscuous).then(|| wanted.unicasts.iter().map(|u| u.address).collect()));
        wire.queues = wanted.unicasts.to_vec();
        wire.groups.push((!wanted.all_groups).then(|| wanted.groups.to_vec()));
        Filtered { unicasts: !wanted.promiscuous, groups: !wanted.all_groups }
    }
    fn receive(&mut self, queue: u16, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let frames: Vec<_> = {
            let mut wire = self.0.borrow_mut();
            let inbox = match usize::from(queue).checked_sub(1) {
                Some(n) => &mut wire.more[n],
                None => &mut wire.inbox,
            };
            let n = inbox.len().min(budget as usize);
            inbox.drain(..n).collect()
        };
        for frame in &frames {
            let pieces: Vec<&[u8]> = frame.iter().map(Vec::as_slice).collect();
            let checked = if self.0.borrow().good { Checked::Good } else { Checked::Unknown };
            let vlan = self.0.borrow().stripped;
            sink(Received { pieces: &pieces, checked, vlan, hash: 0 });
        }
        frames.len() as u32
    }
    fn transmit(&mut self, _: u16, frame: &Outgoing<'_>, token: Held) -> Result<(), (Refused, Held)> {
        let mut wire = self.0.borrow_mut();
        if wire.room == 0 {
            return Err((Refused::Full, token));
        }
        if !frame.offload.is_none()
            && let Some(why) = wire.refuses
        {
            return Err((why, token));
        }
        wire.room -= 1;
        let mut bytes = frame.header.to_vec();
        for segment in frame.segments {
            let at = std::ptr::with_exposed_provenance::<u8>(segment.address() as usize);
            for i in 0..usize::from(segment.len()) {
                // SAFETY: the engine vouched for the segment, and its guest's memory lives as long as the test.
                bytes.push(unsafe { at.add(i).read_volatile() });
            }
        }
        wire.sent.push(bytes);
        wire.headers.push(frame.header.len());
        wire.asked.push(frame.offload);
        wire.held.push(token);
        Ok(())
    }
    fn flush(&mut self, _: u16) {
        self.0.borrow_mut().flushes += 1;
    }
    fn reclaim(&mut self, _: u16, mut done: impl FnMut(Held, Outcome)) -> u32 {
        let held = {
            let mut wire = self.0.borrow_mut();
            if wire.lets_go { std::mem::take(&mut wire.held) } else { Vec::new() }
        };
        let n = held.len() as u32;
        held.into_iter().for_each(|token| done(token, Outcome::Sent));
        n
    }
}

/// The outside of an uplink.
pub struct End {
    pub wire: Rc<RefCell<Wire>>,
    pub counters: &'static UplinkCounters,
}

/// An engine with an uplink for each of these rules.
pub fn with_uplinks(all: impl IntoIterator<Item = Option<Policy>>) -> (Bench<TestNic>, Vec<End>) {
    let mut bench = Bench::new();
    let ends = all.into_iter().map(|policy| add_uplink(&mut bench, Wire::default(), policy)).collect();
    (bench, ends)
}

/// Adds an uplink with that wire behind it, which has a link and takes 100 frames.
pub fn add_uplink(bench: &mut Bench<TestNic>, wire: Wire, policy: Option<Policy>) -> End {
    let wire = Rc::new(RefCell::new(Wire { room: 100, lets_go: true, up: true, ..wire }));
    let counters: &UplinkCounters = Box::leak(Box::default());
    let uplink = Uplink::new(TestNic(wire.clone()), counters, 1);
    let uplink = match policy {
        Some(policy) => uplink.with_policy(Box::leak(Box::new(policy))),
        None => uplink,
    };
    assert!(bench.engine.backend_mut().add_uplink(uplink));
    End { wire, counters }
}

pub struct Rig {
    pub bench: Bench<TestNic>,
    pub wire: Rc<RefCell<Wire>>,
    pub counters: &'static UplinkCounters,
}

pub fn rig(guests: &[&Guest]) -> Rig {
    let (mut bench, mut ends) = with_uplinks([None]);
    let End { wire, counters } = ends.remove(0);
    for (port, guest) in guests.iter().enumerate() {
        assert_eq!(bench.attach(port, guest), Reply::Attached);
    }
    Rig { bench, wire, counters }
}

pub fn from_outside(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.resize(len, 0x5a);
    frame
}

#[test]
fn what_no_guest_has_goes_out_whole_and_its_buffers_come_back_when_the_nic_is_done() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, counters } = rig(&[&a, &b]);
    b.post(4, &[1526]);
    wire.borrow_mut().lets_go = false;
    let frames = [a.frame(OUTSIDE, 1514, 1), a.frame(OUTSIDE, 60, 2), a.frame(OUTSIDE, 14, 3)];
    for frame in &frames {
        assert!(a.send(frame, &[12, 30, 700]));
    }
    assert_eq!(bench.turn(), 3);
    assert_eq!(wire.borrow().sent, frames);
    assert!(wire.borrow().flushes >= 1);
    assert_eq!(b.receive(), None, "a frame for outside is nobody else's");
    assert_eq!(bench.interrupts.take(), [], "the NIC still reads the buffers");
    wire.borrow_mut().lets_go = true;
    assert_eq!(bench.turn(), 3);
    assert_eq!(bench.interrupts.take().len(), 1);
    assert_eq!((counters.tx_packets.get(), counters.tx_bytes.get()), (3, 1514 + 60 + 14));
}

#[test]
fn guests_reach_each_other_directly_and_multicast_reaches_both_sides() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, .. } = rig(&[&a, &b]);
    b.post(4, &[1526]);
    let (direct, all) = (a.frame(b.mac, 100, 1), a.frame(BROADCAST, 90, 2));
    a.send(&direct, &[]);
    a.send(&all, &[]);
    bench.turn();
    assert_eq!((b.receive(), b.receive()), (Some(direct), Some(all.clone())));
    assert_eq!(wire.borrow().sent, [all]);
}

#[test]
fn frames_from_the_wire_reach_the_guest_they_are_for_and_nobody_else() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, counters } = rig(&[&a, &b]);
    a.post(8, &[700]);
    b.post(8, &[1526]);
    let (for_a, for_all) = (from_outside(a.mac, OUTSIDE, 1514), from_outside(BROADCAST, OUTSIDE, 64));
    let pieces = for_a.chunks(600).map(<[u8]>::to_vec).collect();
    wire.borrow_mut().inbox.extend([
        pieces,
        vec![for_all.clone()],
        vec![from_outside([2, 9, 9, 9, 9, 9], OUTSIDE, 64)],
        vec![from_outside(a.mac, b.mac, 64)],
        vec![from_outside(a.mac, BROADCAST, 64)],
        vec![vec![0; 13]],
        vec![from_outside(a.mac, OUTSIDE, 4000)],
    ]);
    bench.turn();
    assert_eq!((a.receive(), a.receive(), a.receive()), (Some(for_a), Some(for_all.clone()), None));
    assert_eq!((b.receive(), b.receive()), (Some(for_all), None));
    let c = counters;
    assert_eq!((c.rx_packets.get(), c.rx_not_ours.get(), c.rx_own_source.get(), c.rx_malformed.get()), (7, 1, 1, 2));
    assert_eq!(a.shared.counters().rx_too_large.get(), 1);
}

#[test]
fn a_full_nic_costs_the_frame_and_not_the_buffer() {
    let mut a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    wire.borrow_mut().room = 1;
    for _ in 0..3 {
        let frame = a.frame(OUTSIDE, 60, 0);
        a.send(&frame, &[]);
    }
    bench.turn();
    bench.turn();
    assert_eq!((counters.tx_packets.get(), counters.tx_refused.get()), (1, 2));
    assert_eq!((0..4).filter(|_| a.tx.take_used().is_some()).count(), 3, "every buffer came back");
}

#[test]
fn without_a_link_guests_flood_among_themselves() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, .. } = rig(&[&a, &b]);
    wire.borrow_mut().up = false;
    b.post(2, &[1526]);
    let frame = a.frame(OUTSIDE, 60, 0);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame));
    assert!(wire.borrow().sent.is_empty());
}

#[test]
fn neither_reset_nor_detachment_is_done_while_the_nic_reads_the_guests_memory() {
    let mut a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, .. } = rig(&[&a]);
    wire.borrow_mut().lets_go = false;
    let frame = a.frame(OUTSIDE, 1000, 0);
    a.send(&frame, &[]);
    bench.turn();
    a.shared.request_reset();
    bench.turn();
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Resetting, "the driver must not have its memory back");
    wire.borrow_mut().lets_go = true;
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Idle);

    a.start();
    bench.turn();
    wire.borrow_mut().lets_go = false;
    a.send(&frame, &[]);
    bench.turn();
    let control = bench.engine.control();
    control.submit(Command::Detach { port: 0 }).expect("the slot is free");
    for _ in 0..3 {
        bench.turn();
        assert!(control.reply().is_none());
    }
    wire.borrow_mut().lets_go = true;
    bench.turn();
    assert!(matches!(control.reply(), Some(Reply::Detached(_))));
}

#[test]
fn the_guests_are_told_of_the_link_and_of_its_loss() {
    let a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    let turn = |bench: &mut Bench<TestNic>| {
        bench.now += 1000;
        bench.turn();
        bench.interrupts.take().len()
    };
    assert_eq!((turn(&mut bench), a.shared.read_config(6, 2)), (0, 1), "nothing has changed");
    for (up, status, speed) in [(false, 0, 0), (true, 1, 10_000)] {
        wire.borrow_mut().up = up;
        let before = a.shared.config_generation();
        assert_eq!(turn(&mut bench), 1);
        assert_eq!((a.shared.read_config(6, 2), counters.link_mbits.get()), (status, speed));
        assert_ne!(a.shared.config_generation(), before);
        assert_eq!(turn(&mut bench), 0, "told once");
    }
    wire.borrow_mut().up = false;
    turn(&mut bench);
    a.shared.request_reset();
    assert_eq!((turn(&mut bench), a.shared.read_config(6, 2)), (0, 0), "a driver that is set up anew reads how it is");
}

#[test]
fn what_the_nic_has_counted_can_be_read_beside_it() {
    let Rig { mut bench, wire, counters } = rig(&[]);
    wire.borrow_mut().statistics = Statistics { received: 7, missed: 3, recoveries: 1, ..Statistics::default() };
    bench.now += 1000;
    bench.turn();
    let all: Vec<_> = counters.iter().filter(|&(name, n)| name.starts_with("nic_") && n != 0).collect();
    assert_eq!(all, [("nic_rx_packets", 7), ("nic_rx_missed", 3), ("nic_recoveries", 1)]);
}
