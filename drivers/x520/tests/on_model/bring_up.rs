//! Bring-up, and its failures.

use std::cell::RefCell;

use x520::dma::DmaBuffer;
use x520::nic::{Link, Nic, Refused};
use x520::registers::Registers;
use x520::{Config, Device, Failure, Filter, Status, Steering, X520};
use x520_model::made::{OWN, frame};
use x520_model::memory::Memory;

use crate::bench::{Bench, Port, small};

/// Registers behind a bus that holds writes back until the next read.
struct Posted(Port, RefCell<Vec<(u32, u32)>>);

impl Registers for Posted {
    fn read(&self, offset: u32) -> u32 {
        self.1.borrow_mut().drain(..).for_each(|(offset, value)| self.0.write(offset, value));
        self.0.read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.1.borrow_mut().push((offset, value));
    }
}

#[test]
fn the_time_of_a_reset_is_counted_from_when_the_device_has_heard_of_it() {
    let Bench { model, memory, own, .. } = Bench::cold(small());
    // SAFETY: the first driver did nothing with it, and is gone.
    let buffer = unsafe { DmaBuffer::new(own.host, own.bus, own.len) };
    let registers = Posted(Port(model.clone()), RefCell::default());
    let mut nic: X520<_, u64> = X520::new(registers, buffer, small(), Filter::default()).expect("a good configuration");
    for step in 0..30_000 {
        model.borrow_mut().advance(100);
        nic.service(step * 100);
    }
    assert_eq!((nic.status(), nic.link()), (Status::Running, Link::Up(10_000)));
    assert_eq!(model.borrow_mut().take_diagnostics(), []);
    drop(memory);
}

#[test]
fn the_device_comes_up_and_waits_for_its_link() {
    let mut b = Bench::cold(small());
    assert_eq!(b.nic.status(), Status::Starting);
    b.until(|b| b.nic.status() == Status::Running);
    assert!(b.now < 100_000, "{} us", b.now);
    assert_eq!((b.nic.link(), b.nic.address()), (Link::Down, OWN));
    assert_eq!(b.send(&frame(60, 0), &[], 1), Err(Refused::LinkDown));
    b.until_up();
    assert_eq!(b.send(&frame(60, 0), &[], 1), Ok(()));
    b.clean();
}

#[test]
fn service_tells_of_each_change_of_the_link() {
    let mut b = Bench::up(small());
    assert!(!b.nic.service(b.now));
    b.model.borrow_mut().set_cable(false);
    assert!(b.nic.service(b.now) && b.nic.link() == Link::Down);
    assert!(!b.nic.service(b.now));
    b.model.borrow_mut().set_cable(true);
    b.model.borrow_mut().advance(600_000);
    assert!(b.nic.service(b.now + 600_000) && b.nic.link() == Link::Up(10_000));
    b.clean();
}

#[test]
fn nothing_is_taken_before_the_device_runs() {
    let mut b = Bench::cold(small());
    assert_eq!(b.send(&frame(60, 0), &[], 7), Err(Refused::NotReady));
    assert_eq!(b.received(0), Vec::<Vec<u8>>::new());
    b.nic.flush(0);
    assert_eq!(b.reclaim(), []);
    assert_eq!(b.model.borrow().accesses(), (0, 0));
}

#[test]
fn what_the_device_does_not_do_is_named() {
    type Fault = fn(&mut x520_model::Faults);
    let cases: [(Fault, Failure); 3] = [
        (|f| f.gone = true, Failure::Gone),
        (|f| f.reset_hangs = true, Failure::Reset),
        (|f| f.enable_stuck = true, Failure::Queue),
    ];
    for (fault, failure) in cases {
        let mut b = Bench::cold(small());
        fault(&mut b.model.borrow_mut().faults);
        b.until(|b| matches!(b.nic.status(), Status::Failed(_)));
        assert_eq!(b.nic.status(), Status::Failed(failure));
        assert_eq!(b.send(&frame(60, 0), &[], 7), Err(Refused::NotReady));
        b.model.borrow_mut().faults = x520_model::Faults::default();
        b.model.borrow_mut().advance(10_000);
        b.model.borrow_mut().take_diagnostics();
        b.nic.restart(b.now);
        b.until_up();
        b.clean();
    }
}

#[test]
fn an_eeprom_without_a_unicast_address_is_refused() {
    for mac in [[0; 6], [1, 0, 0, 0, 0, 1]] {
        let device = x520_model::Config { mac, ..x520_model::Config::default() };
        let mut b = Bench::with(small(), Filter::all(), device);
        b.until(|b| b.nic.status() == Status::Failed(Failure::NoAddress));
    }
}

#[test]
fn dma_that_does_not_end_takes_two_resets() {
    let mut b = Bench::cold(small());
    b.model.borrow_mut().faults.master_stuck = true;
    b.until_up();
    b.clean();
}

#[test]
fn a_configuration_out_of_range_or_too_little_memory_is_refused() {
    let memory = Memory::new(1 << 22);
    let block = memory.granted(1 << 22, 4096);
    let model = Bench::cold(small()).model;
    let make = |config: Config, offset: usize, len: usize| {
        // SAFETY: no device is brought up on it.
        let buffer = unsafe { DmaBuffer::new(block.host.add(offset), block.bus + offset as u64, len) };
        X520::<_, u64>::new(Port(model.clone()), buffer, config, Filter::all()).err()
    };
    let all = 1 << 21;
    assert!(make(small(), 0, all).is_none());
    for bad in [
        Config { receive_queues: 0, ..small() },
        Config { receive_queues: 17, ..small() },
        Config { receive_queues: 33, steering: Steering::Addresses, ..small() },
        Config { transmit_queues: 65, ..small() },
        Config { receive_descriptors: 100, ..small() },
        Config { transmit_descriptors: 8192, ..small() },
        Config { max_frame: 1513, ..small() },
        Config { max_frame: 15_501, ..small() },
    ] {
        assert!(make(bad.clone(), 0, all).is_some(), "{bad:?}");
    }
    assert!(make(small(), 0, small().memory()).is_none());
    assert!(make(small(), 0, small().memory() - 1).is_some());
    assert!(make(small(), 64, all).is_some(), "not aligned");
}
