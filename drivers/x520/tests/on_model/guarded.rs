//! The control of bus mastering.

use std::cell::RefCell;
use std::rc::Rc;

use x520::nic::{Link, Nic, Offload, Outcome, Outgoing};
use x520::{BusMaster, Failure, Guarded};
use x520_model::Model;
use x520_model::made::frame;

use crate::bench::{Bench, Port, small};

/// The changes of the bit: each with the value, and the number of the device's transactions until then.
#[derive(Default)]
struct Bit {
    history: Vec<(bool, u64)>,
    refuses: bool,
}

struct Function(Rc<RefCell<Bit>>, Rc<RefCell<Model>>);

// SAFETY: the rig lets the model work only while the bit is set.
unsafe impl BusMaster for Function {
    fn set(&mut self, on: bool) -> bool {
        let mut bit = self.0.borrow_mut();
        if !bit.refuses {
            bit.history.push((on, self.1.borrow().transactions()));
        }
        !bit.refuses
    }
}

struct Rig {
    bench: Bench,
    nic: Guarded<Port, u64, Function>,
    bit: Rc<RefCell<Bit>>,
}

impl Rig {
    fn new() -> Self {
        let Bench { model, memory, own, nic, now } = Bench::cold(small());
        let bit = Rc::new(RefCell::new(Bit::default()));
        let guarded = Guarded::new(nic, Function(bit.clone(), model.clone()), now).expect("nobody refuses");
        let bench = Bench { nic: Bench::cold(small()).nic, model, memory, own, now };
        Self { bench, nic: guarded, bit }
    }

    fn on(&self) -> bool {
        self.bit.borrow().history.last().is_some_and(|last| last.0)
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.bench.now += 1000;
            self.bench.model.borrow_mut().advance(1000);
            if self.on() {
                self.bench.run();
            }
            self.nic.service(self.bench.now);
        }
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if done(self) {
                return;
            }
            self.pass(1);
        }
        panic!("not within 20 s");
    }

    fn send(&mut self, token: u64) {
        let frame = frame(60, 0);
        let outgoing = Outgoing { header: &frame, segments: &[], offload: Offload::NOTHING };
        self.nic.transmit(0, &outgoing, token).expect("room and link");
        self.nic.flush(0);
    }

    fn reclaim(&mut self) -> Vec<(u64, Outcome)> {
        let mut tokens = Vec::new();
        self.nic.reclaim(0, |token, outcome| tokens.push((token, outcome)));
        tokens
    }
}

#[test]
fn the_device_masters_the_bus_only_once_it_was_reset() {
    let mut rig = Rig::new();
    assert_eq!(rig.bit.borrow().history, [(false, 0)], "taken before anything else");
    rig.until(|rig| rig.nic.is_running() && rig.nic.link() == Link::Up(10_000));
    assert_eq!(rig.bit.borrow().history, [(false, 0), (true, 0)]);
    rig.send(1);
    rig.pass(1);
    assert_eq!(rig.reclaim(), [(1, Outcome::Sent)]);
}

#[test]
fn a_device_that_is_gone_loses_the_bus_before_its_frames_come_back_and_is_tried_again() {
    let mut rig = Rig::new();
    rig.until(|rig| rig.nic.is_running() && rig.nic.link() != Link::Down);
    rig.bench.model.borrow_mut().faults.transmit_stalled = true;
    rig.send(1);
    rig.bench.model.borrow_mut().faults.gone = true;
    rig.bit.borrow_mut().refuses = true;
    rig.pass(50);
    assert_eq!((rig.reclaim(), rig.on()), (vec![], true), "it may still read them");
    rig.bit.borrow_mut().refuses = false;
    rig.pass(1);
    assert_eq!((rig.on(), rig.nic.failure(), rig.nic.link()), (false, Some(Failure::Gone), Link::Down));
    assert_eq!(rig.reclaim(), [(1, Outcome::Dropped)]);

    // Nothing happens for a while; then it fails again, and is as good as new when it comes back.
    rig.pass(25_000);
    assert!(rig.bit.borrow().history.iter().skip(2).all(|(on, _)| !on));
    rig.bench.model.borrow_mut().faults = Default::default();
    rig.until(|rig| rig.nic.is_running() && rig.nic.link() != Link::Down);
    rig.send(2);
    rig.pass(1);
    assert_eq!(rig.reclaim(), [(2, Outcome::Sent)]);
}
