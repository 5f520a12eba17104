//! The virtio-net driver on a device that keeps the rules of its rings, and then perhaps does not: forged, doubled and early
//! completions, lengths of its own, changed rings and buffers, indices that jump, a configuration that never rests. Whatever
//! happens: each token comes back exactly once, in order; a buffer is the device's or the driver's and never both; no frame is
//! longer than the driver says. While the device keeps the rules, frames come and go whole and in order. The driver gives the
//! device up only after it has broken the rules of a ring.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nic::{Link, Nic, Offload, Outcome, Outgoing, Refused, Segment};
use virtio_net::VirtioNet;

use crate::input::Input;
use crate::planted::planted;

mod device;
mod pages;

use device::{BUFFER, Device, HEADER, Port, RECEIVE, RING, TRANSMIT};
use pages::Pages;

/// Steps of one run at most: a run is short, and many are made.
const MOST_STEPS: usize = 200;
/// Lengths of frames that the driver takes and gives.
const FRAME: std::ops::RangeInclusive<usize> = 14..=1518;

type Driver = VirtioNet<Pages, Port, u64>;

/// The books.
struct Books {
    nic: Driver,
    device: Rc<RefCell<Device>>,
    next: u64,
    /// Tokens out, oldest first.
    out: VecDeque<u64>,
    /// Frames that were taken and that the device has not seen, oldest first.
    taken: VecDeque<Vec<u8>>,
    /// Frames that the device has given, oldest first.
    given: VecDeque<Vec<u8>>,
    /// Frames that came.
    came: u64,
    /// The device has done what no device may do to its rings or buffers.
    broken: bool,
    payload: Vec<u8>,
}

impl Books {
    fn transmit(&mut self, queue: u16, header: usize, pieces: &[usize]) {
        let mark = self.next as u8;
        let header: Vec<u8> = (0..header).map(|i| mark.wrapping_add(i as u8)).collect();
        let base = self.payload.as_ptr().expose_provenance() as u64;
        // SAFETY: the pieces are within the payload, which lives as long as the driver and holds nothing else.
        let segments: Vec<_> =
            pieces.iter().map(|&len| unsafe { Segment::new(base + u64::from(mark), len as u16) }).collect();
        let mut frame = header.clone();
        pieces.iter().for_each(|&len| frame.extend_from_slice(&self.payload[usize::from(mark)..][..len]));
        let outgoing = Outgoing { header: &header, segments: &segments, offload: Offload::NOTHING };
        let link = self.nic.link();
        match self.nic.transmit(queue, &outgoing, self.next) {
            Ok(()) => {
                assert!(queue == 0 && FRAME.contains(&frame.len()) && link != Link::Down, "nothing wrong with it");
                self.out.push_back(self.next);
                self.taken.push_back(frame);
                self.next += 1;
            }
            Err((why, token)) => {
                assert_eq!(token, self.next, "a refused frame's token comes back at once");
                match why {
                    Refused::Queue => assert_ne!(queue, 0),
                    Refused::Length => assert!(!FRAME.contains(&frame.len())),
                    Refused::NotReady => assert_eq!(self.nic.link(), Link::Down),
                    Refused::Full => {
                        let device = self.device.borrow();
                        let used = device.with_device(TRANSMIT) + device.offered(TRANSMIT);
                        assert!(self.broken || self.out.len() == RING || used == RING, "there is room");
                    }
                    _ => panic!("no reason to refuse it: {why:?}"),
                }
            }
        }
    }

    fn reclaim(&mut self) {
        let Self { nic, out, .. } = self;
        nic.reclaim(0, |token, outcome| {
            assert_eq!(Some(token), out.pop_front(), "tokens come back once and in order");
            assert_eq!(outcome, Outcome::Sent);
        });
        assert!(out.is_empty(), "every token that is out comes back");
    }

    fn receive(&mut self, queue: u16, budget: u32) {
        let Self { nic, device, given, came, broken, .. } = self;
        let (mut sunk, before) = (0, nic.statistics());
        let count = nic.receive(queue, budget, |received| {
            assert!(queue == 0 && received.pieces.len() == 1);
            let piece = received.pieces[0];
            assert!(FRAME.contains(&piece.len()), "a frame of {} bytes", piece.len());
            assert!(!pages::is_shared(piece.as_ptr() as usize), "the buffer of a frame that came is the driver's");
            let mut frame = piece.to_vec();
            if planted() {
                frame[7] ^= 1;
            }
            if !*broken {
                assert_eq!(given.pop_front().as_ref(), Some(&frame), "a frame comes whole, unchanged and in order");
            }
            sunk += 1;
        });
        *came += sunk;
        let after = nic.statistics();
        assert!(count <= budget && sunk <= u64::from(count));
        assert_eq!(after.received, before.received + sunk);
        assert_eq!(
            after.malformed - before.malformed,
            u64::from(count) - sunk,
            "every buffer held a frame or nonsense"
        );
        if !*broken {
            assert!(count == budget || queue != 0 || given.is_empty(), "what was given comes");
            let posted = device.borrow().offered(RECEIVE) + device.borrow().with_device(RECEIVE);
            assert!(count == budget || queue != 0 || posted == RING, "buffers go back to the device");
        }
    }

    /// The device looks at its transmit queue, by the rules.
    fn take(&mut self) {
        let taken = self.device.borrow_mut().take(TRANSMIT);
        for (address, len) in taken {
            let Some(bytes) = pages::read(address, len).filter(|_| !self.broken) else { continue };
            let expected = self.taken.pop_front().expect("the device sees what was taken, and nothing else");
            assert_eq!(bytes[..HEADER], [0; HEADER], "the header asks for nothing");
            assert!(bytes[HEADER..] == expected, "the device sees the frame that was taken");
        }
    }

    /// The device gives a frame, by the rules. `written`: how many bytes it says.
    fn give(&mut self, len: usize, mark: u8, written: Option<u32>) {
        let mut device = self.device.borrow_mut();
        device.take(RECEIVE);
        let Some((head, address, room)) = device.pop(RECEIVE) else { return };
        assert!(self.broken || room == BUFFER, "a whole buffer");
        let frame: Vec<u8> = (0..len).map(|i| mark.wrapping_mul(3).wrapping_add(i as u8)).collect();
        pages::write(address + HEADER as u64, &frame);
        let written = written.unwrap_or((HEADER + len) as u32);
        // What the driver finds is what the device says that it has written.
        let found = (written as usize).checked_sub(HEADER).filter(|found| FRAME.contains(found));
        if let Some(found) = found {
            let bytes = pages::read(address + HEADER as u64, found);
            self.given.extend(bytes);
        }
        device.complete(RECEIVE, u32::from(head), written);
    }

    /// Something that a device does, by the rules.
    fn keep_rules(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => self.take(),
            2 => {
                self.take();
                let (count, reverse) = (input.byte(), input.flag());
                for _ in 0..count {
                    let mut device = self.device.borrow_mut();
                    let done = if reverse { device.pop_newest(TRANSMIT) } else { device.pop(TRANSMIT) };
                    let Some((head, ..)) = done else { break };
                    device.complete(TRANSMIT, u32::from(head), 0);
                }
            }
            3..6 => {
                for _ in 0..1 + input.byte() % 16 {
                    self.give(input.within(14, 1519) as usize, input.byte(), None);
                }
            }
            6 => {
                // A frame that is no frame: too short, too long, or with another length than it has.
                let written = if input.flag() { input.within(0, 4000) as u32 } else { input.wide() as u32 };
                self.give(input.within(0, 2036) as usize, input.byte(), Some(written));
            }
            _ => self.device.borrow_mut().set_flags(input.flag(), u16::from(input.byte())),
        }
    }

    /// Something that no device may do.
    fn break_rules(&mut self, input: &mut Input<'_>) {
        self.broken = true;
        let queue = u16::from(input.flag());
        let mut device = self.device.borrow_mut();
        match input.byte() % 8 {
            0 | 1 => {
                let head = if input.flag() { u32::from(input.byte()) % 130 } else { input.wide() as u32 };
                let written = if input.flag() { input.within(0, 2100) as u32 } else { input.wide() as u32 };
                device.complete(queue, head, written);
            }
            2 => device.jump(queue, input.wide() as u16),
            3 => device.scribble(queue, input.within(0, 0x1800), input.byte()),
            4 => {
                // The buffer is changed after it was given back.
                if let Some((_, address, room)) = device.pop(queue) {
                    pages::write(address + input.within(0, room.max(1) as u64), &[input.byte()]);
                }
            }
            5 => {
                // The same once more.
                if let Some((head, ..)) = device.pop(queue) {
                    let written = input.within(0, 2048) as u32;
                    (0..2).for_each(|_| device.complete(queue, u32::from(head), written));
                }
            }
            6 => {
                let (at, value) = (input.byte() % 128, input.byte());
                device.change_when_unshared(queue, at.into(), value.into());
            }
            _ => {
                for at in 0..RING {
                    device.complete(queue, at as u32, input.within(0, 2048) as u32);
                }
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 32 {
            0..6 => {
                let header = input.within(0, 130) as usize;
                let pieces: Vec<usize> = (0..input.byte() % 4).map(|_| input.within(0, 600) as usize).collect();
                let queue = u16::from(input.byte() == 0);
                for _ in 0..1 + input.byte() % 64 {
                    self.transmit(queue, header, &pieces);
                }
            }
            6..8 => self.nic.flush(u16::from(input.byte() == 0)),
            8..10 => self.reclaim(),
            10..15 => self.receive(u16::from(input.byte() == 0), 1 + u32::from(input.byte() % 100)),
            15 => {
                let was = self.nic.link();
                let changed = self.nic.service(0);
                assert_eq!(changed, was != self.nic.link(), "a change of the link is told");
            }
            16..29 => self.keep_rules(input),
            _ => self.break_rules(input),
        }
        assert!(self.broken || self.nic.link() != Link::Down, "the device has kept the rules");
        assert_eq!(
            self.nic.link() == Link::Down,
            self.device.borrow().is_reset(),
            "a device that is given up is reset"
        );
    }

    /// The device gives back all transmit buffers that it has.
    fn finish_all(&self) {
        let mut device = self.device.borrow_mut();
        while let Some((head, ..)) = device.pop(TRANSMIT) {
            device.complete(TRANSMIT, u32::from(head), 0);
        }
    }

    /// The device keeps the rules from now on.
    fn settle(&mut self) {
        self.reclaim();
        assert_eq!(self.nic.reclaim(0, |_, _| ()), 0, "no token comes back twice");
        for _ in 0..2 {
            self.receive(0, 1000);
            self.take();
            self.finish_all();
            self.nic.service(0);
        }
        if self.broken {
            return;
        }
        for mark in 0..RING as u8 {
            self.give(100, mark, None);
            self.transmit(0, 60, &[]);
        }
        self.device.borrow_mut().set_flags(false, 0);
        let notified = self.device.borrow().notified;
        self.nic.flush(0);
        assert_ne!(self.device.borrow().notified, notified, "a device that wants to be told is told");
        let came = self.came;
        self.receive(0, 1000);
        self.take();
        self.reclaim();
        assert_eq!((self.came - came, self.taken.len()), (RING as u64, 0), "it receives and sends");
    }
}

/// The target.
///
/// # Panics
/// The driver is wrong.
pub fn run(bytes: &[u8]) {
    pages::begin();
    let mut input = Input::new(bytes);
    let device = Rc::new(RefCell::new(Device::new(&mut input)));
    let usable = device.borrow().is_usable();
    let nic = Driver::new(Port(device.clone()));
    assert_eq!(nic.is_ok(), usable, "a device is used if it can be");
    if let Ok(nic) = nic {
        assert_eq!(nic.address(), device.borrow().address());
        let payload = (0..2500_u32).map(|i| (i / 7) as u8).collect();
        let mut books = Books {
            nic,
            device,
            next: 0,
            out: VecDeque::new(),
            taken: VecDeque::new(),
            given: VecDeque::new(),
            came: 0,
            broken: false,
            payload,
        };
        for _ in 0..MOST_STEPS {
            if input.is_empty() {
                break;
            }
            books.step(&mut input);
        }
        books.settle();
    }
    pages::end();
}

crate::planted::tests!(the_driver_keeps_its_books_whatever_the_device_does, 256, 1..1000);

#[cfg(test)]
mod found {
    /// Inputs that the driver failed on once.
    #[test]
    fn what_was_found_stays_found() {
        // A completion of a descriptor beyond the ring, twice the same one, and an index that jumps.
        for broken in [[0, 0, 1, 0xff, 0xff], [0, 5, 9, 9, 9], [1, 2, 7, 7, 7], [0, 7, 1, 1, 1]] {
            let mut input = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 20, 3, 4, 4, 4];
            for _ in 0..20 {
                input.push(30);
                input.extend_from_slice(&broken);
                input.extend_from_slice(&[10, 1, 50, 15]);
            }
            super::run(&input);
        }
    }
}
