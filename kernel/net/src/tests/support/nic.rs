//! A NIC that keeps what it is handed until it is told to let go, and an engine with such NICs as uplinks.

#![allow(unsafe_code, reason = "reads what the engine says a NIC may read")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ::nic::{
    Checked, Filtered, Limits, Link, Nic, Offload, Outcome, Outgoing, ReceiveFilter, Received, Refused, Statistics,
    Unicast,
};

use super::Bench;
use crate::counters::UplinkCounters;
use crate::policy::Policy;
use crate::testing::Guest;
use crate::uplink::{Held, Uplink};
use engine::control::Reply;

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
    pub held: Vec<Held>,
    /// Whether it lets go of that.
    pub lets_go: bool,
    /// Whether what it lets go was not sent.
    pub unsent: bool,
    /// How many it still takes.
    pub room: usize,
    pub flushes: usize,
    pub up: bool,
    /// For whom it was told to let unicasts in, each time; None: for everybody.
    pub set_receive_filter: Vec<Option<Vec<[u8; 6]>>>,
    /// By which queues it was last told to have them come.
    pub queues: Vec<Unicast>,
    /// The same of multicasts.
    pub groups: Vec<Option<Vec<[u8; 6]>>>,
    /// The tag (TCI) that it has taken out of what comes.
    pub stripped: Option<u16>,
    pub statistics: Statistics,
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
        wire.set_receive_filter
            .push((!wanted.promiscuous).then(|| wanted.unicasts.iter().map(|u| u.address).collect()));
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
        let outcome = || if self.0.borrow().unsent { Outcome::Dropped } else { Outcome::Sent };
        held.into_iter().for_each(|token| done(token, outcome()));
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
