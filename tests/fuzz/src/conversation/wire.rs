//! The NIC of an uplink, and the outside behind it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use net::uplink::Held;
use nic::{Checked, Filtered, Limits, Link, Nic, Outcome, Outgoing, ReceiveFilter, Received, Refused, Statistics};

/// Somebody outside.
pub const OUTSIDE: [u8; 6] = [0x02, 0xaa, 0, 0, 0, 9];
/// The NIC's own address.
pub const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0xff];

/// A frame from outside.
pub struct Incoming {
    /// Its bytes, in the pieces in which they came.
    pub pieces: Vec<Vec<u8>>,
    /// The tag (TCI) that the NIC has taken out.
    pub vlan: Option<u16>,
    /// The NIC has checked its checksums.
    pub good: bool,
}

/// What the NIC does, and what it has seen.
#[derive(Default)]
pub struct Wire {
    /// Frames from outside.
    pub inbox: VecDeque<Incoming>,
    /// Frames that it was handed, oldest first.
    pub sent: Vec<Vec<u8>>,
    held: Vec<Held>,
    /// It does not give back what it holds.
    pub stuck: bool,
    /// Frames that it still takes.
    pub room: usize,
    /// There is no link.
    pub down: bool,
    /// It says that it does offloads, and what it says when it is asked for one.
    pub offloads: bool,
    /// See `offloads`.
    pub refuses: Option<Refused>,
    /// Its link has changed since it was last serviced.
    pub changed: bool,
}

impl Wire {
    /// How many frames it holds.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// The NIC.
pub struct TestNic(pub Rc<RefCell<Wire>>);

impl Nic for TestNic {
    type Token = Held;

    fn address(&self) -> [u8; 6] {
        OWN
    }
    fn limits(&self) -> Limits {
        Limits {
            receive_queues: 1,
            transmit_queues: 1,
            max_frame: 1518,
            max_header: 128,
            max_segments: 8,
            offloads: self.0.borrow().offloads,
        }
    }
    fn link(&self) -> Link {
        if self.0.borrow().down { Link::Down } else { Link::Up(10_000) }
    }
    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
    fn service(&mut self, _: u64) -> bool {
        std::mem::take(&mut self.0.borrow_mut().changed)
    }
    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        assert!(wanted.unicasts.len() <= 127 || wanted.promiscuous, "as many as a NIC has room for");
        Filtered { unicasts: !wanted.promiscuous, groups: !wanted.all_groups }
    }
    fn receive(&mut self, queue: u16, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        assert_eq!(queue, 0, "there is one");
        let mut count = 0;
        while count < budget {
            let Some(Incoming { pieces, vlan, good }) = self.0.borrow_mut().inbox.pop_front() else { break };
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let checked = if good { Checked::Good } else { Checked::Unknown };
            sink(Received { pieces: &pieces, checked, vlan, hash: 0 });
            count += 1;
        }
        count
    }
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: Held) -> Result<(), (Refused, Held)> {
        let mut wire = self.0.borrow_mut();
        assert_eq!(queue, 0, "there is one");
        if wire.down {
            return Err((Refused::LinkDown, token));
        }
        if wire.room == 0 {
            return Err((Refused::Full, token));
        }
        if !frame.offload.is_none() {
            assert!(wire.offloads, "a NIC without offloads is asked for none");
            if let Some(why) = wire.refuses {
                return Err((why, token));
            }
        }
        if frame.segments.len() > 8 {
            return Err((Refused::Segments, token));
        }
        let mut bytes = frame.header.to_vec();
        for segment in frame.segments {
            let at = std::ptr::with_exposed_provenance::<u8>(segment.address() as usize);
            for i in 0..usize::from(segment.len()) {
                // SAFETY: the engine vouched for the segment, and a guest's memory is never freed.
                bytes.push(unsafe { at.add(i).read_volatile() });
            }
        }
        wire.room -= 1;
        wire.sent.push(bytes);
        wire.held.push(token);
        Ok(())
    }
    fn flush(&mut self, _: u16) {}
    fn reclaim(&mut self, _: u16, mut done: impl FnMut(Held, Outcome)) -> u32 {
        let held = {
            let mut wire = self.0.borrow_mut();
            if wire.stuck { Vec::new() } else { std::mem::take(&mut wire.held) }
        };
        let count = held.len() as u32;
        held.into_iter().for_each(|token| done(token, Outcome::Sent));
        count
    }
}
