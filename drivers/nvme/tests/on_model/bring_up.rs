//! Bring-up, its failures, and shutdown.

use nvme::{
    BadNamespace, Config, ConfigError, Controller, ControllerStatus, Failure, Operation, Reason, Refused, Status,
    Unusable,
};
use nvme_model::memory::Memory;
use nvme_model::{Model, Namespace};
use std::cell::RefCell;
use std::rc::Rc;

use crate::bench::{Bench, Bit, Port, Reach, disks, small};

fn device() -> nvme_model::Config {
    nvme_model::Config::default()
}

#[test]
fn a_controller_comes_up_and_says_what_it_is() {
    let mut namespaces = disks();
    namespaces[0].eui64 = [0, 0x1b, 0x44, 0, 0, 0, 0, 1];
    let mut b = Bench::up_with(Config { queues: 3, ..small() }, device(), namespaces);
    let identity = b.controller.identity().unwrap();
    assert_eq!(identity.to_string(), "Model of a disk, serial MODEL1, firmware 1.0, NVMe 2.0, volatile write cache");
    let formats: Vec<_> = b.controller.namespaces().iter().map(|n| (n.id, n.format.unwrap())).collect();
    assert_eq!(
        formats.iter().map(|(id, f)| (*id, f.block_bytes(), f.blocks)).collect::<Vec<_>>(),
        [(1, 512, 16384), (2, 4096, 2048)]
    );
    assert_eq!(formats[0].1.unique.unwrap().to_string(), "001b440000000001");
    assert_eq!((b.controller.queues(), b.controller.is_cache_on(), b.controller.resets()), (3, true, 0));
    let health = b.controller.health().unwrap().to_string();
    assert_eq!(
        health,
        "healthy, 3 % of its life used, 100 % spare, 27 degrees C, 0 hours, 5 unsafe shutdowns, 0 media errors"
    );
    assert_eq!(b.controller.next_event(), None);
    b.pass(1000);
    b.clean();
}

#[test]
fn bus_mastering_is_off_until_the_device_is_disabled() {
    let mut b = Bench::cold(small(), device(), disks());
    // Firmware has left it on.
    b.bit.0.set(true);
    b.model.borrow_mut().write(0x24, 0x000f_000f);
    b.model.borrow_mut().write(0x14, 0x0046_0001);
    b.model.borrow_mut().advance(10_000);
    b.model.borrow_mut().take_diagnostics();
    b.controller.service(b.now);
    assert!(!b.bit.0.get());
    b.turn();
    b.turn();
    assert_eq!((b.bit.0.get(), b.model.borrow_mut().read(0x14) & 1), (false, 0));
    b.until(|b| b.queues[0].is_open());
    assert!(b.bit.0.get());
    assert_eq!(b.model.borrow().starts, 2);
    b.clean();
}

#[test]
fn doorbells_lie_where_the_stride_says() {
    let mut b = Bench::up_with(Config { queues: 2, ..small() }, nvme_model::Config { dstrd: 3, ..device() }, disks());
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.answer(1, Operation::Read, (5, 1), &[into]), Ok(Status::Ok));
    b.clean();
    // 17 doorbells of 1,024 bytes do not fit the model's BAR.
    let mut b = Bench::cold(Config { queues: 8, ..small() }, nvme_model::Config { dstrd: 8, ..device() }, disks());
    b.until(|b| b.controller.status() == ControllerStatus::Failed(Failure::Changed));
}

#[test]
fn a_device_that_does_not_become_ready_in_the_time_of_cap_to_is_given_up() {
    let mut b = Bench::cold(small(), nvme_model::Config { to: 3, ..device() }, disks());
    b.model.borrow_mut().faults.never_ready = true;
    let begin = b.now;
    b.until(|b| b.controller.status() == ControllerStatus::Failed(Failure::TooManyResets(Reason::NotReady)));
    // (3 + 1) * 500 ms for each of five attempts.
    assert!((10_000_000..11_000_000).contains(&(b.now - begin)), "{}", b.now - begin);
    assert!(!b.bit.0.get());
    assert!(b.queues[0].is_closed());
    b.clean();
}

#[test]
fn a_device_that_does_not_stop_is_given_up() {
    let mut b = Bench::up();
    {
        let mut model = b.model.borrow_mut();
        (model.faults.never_stops, model.faults.fatal) = (true, true);
    }
    b.until(|b| b.controller.status() == ControllerStatus::Failed(Failure::DoesNotStop));
    assert!(!b.bit.0.get());
}

#[test]
fn controllers_that_cannot_be_used_are_named() {
    for (device, why) in [
        (nvme_model::Config { css: 0x80, ..device() }, Unusable::CommandSet(0x80)),
        (nvme_model::Config { mpsmin: 4, ..device() }, Unusable::PageSize(16)),
        (nvme_model::Config { mqes: 0, ..device() }, Unusable::QueueEntries(0)),
        (nvme_model::Config { serial: String::new(), ..device() }, Unusable::NoSerial),
    ] {
        let mut b = Bench::cold(small(), device, disks());
        b.until(|b| matches!(b.controller.status(), ControllerStatus::Failed(_)));
        assert_eq!(b.controller.status(), ControllerStatus::Failed(Failure::Unusable(why)));
        b.clean();
    }
}

#[test]
fn absurd_identify_data_costs_the_controller_and_nothing_else() {
    for cns in 0..3 {
        let mut b = Bench::cold(small(), device(), disks());
        b.model.borrow_mut().faults.identify = vec![(cns, 0, vec![0xff; 4096])];
        b.until(|b| !matches!(b.controller.status(), ControllerStatus::Starting));
        let running = b.controller.status() == ControllerStatus::Running;
        assert_eq!(running, cns != 1);
        assert!(b.controller.namespaces().iter().all(|n| n.format.is_err()));
        b.clean();
    }
}

#[test]
fn a_device_that_is_not_there_gets_no_driver() {
    let memory = Memory::new(1 << 20);
    let model = Rc::new(RefCell::new(Model::new(device(), disks(), memory.clone())));
    model.borrow_mut().faults.gone = true;
    let made = Controller::new(Port(model), Bit::default(), &mut Reach(memory), small());
    assert_eq!(made.err(), Some(ConfigError::Gone));
}

#[test]
fn a_configuration_out_of_range_is_refused_with_its_value() {
    let memory = Memory::new(1 << 20);
    let model = Rc::new(RefCell::new(Model::new(device(), disks(), memory.clone())));
    let config = Config { depth: 4096, ..small() };
    let made = Controller::new(Port(model), Bit::default(), &mut Reach(memory), config);
    assert_eq!(made.err().unwrap().to_string(), "depth is 4096; expected 2 to 1024");
}

#[test]
fn a_format_with_metadata_is_refused_and_other_namespaces_work() {
    let mut namespaces = disks();
    namespaces[0].metadata = 8;
    let mut b = Bench::up_with(small(), device(), namespaces);
    assert_eq!(b.controller.namespaces()[0].format, Err(BadNamespace::Metadata(8)));
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Namespace));
    let into = b.piece(&[0; 4096], 0, true);
    assert_eq!(b.answer(2, Operation::Read, (3, 1), &[into]), Ok(Status::Ok));
    b.clean();
}

#[test]
fn namespaces_beyond_the_drivers_table_are_counted() {
    let namespaces = (1..=40).map(|id| Namespace::new(id * 3, 9, 8)).collect();
    let b = Bench::up_with(small(), device(), namespaces);
    assert_eq!((b.controller.namespaces().len(), b.controller.unlisted_namespaces()), (32, 8));
    assert!(b.queues[0].namespace(96).is_some() && b.queues[0].namespace(99).is_none());
}

#[test]
fn a_controller_without_a_namespace_list_is_asked_for_each_identifier() {
    let mut b = Bench::cold(small(), device(), disks());
    // Version 1.0 of the specification has no CNS 2.
    b.model.borrow_mut().faults.identify_fails = Some(2);
    b.until(|b| b.queues[0].is_open());
    assert_eq!(b.controller.namespaces().iter().map(|n| n.id).collect::<Vec<_>>(), [1, 2]);
    b.clean();
}

#[test]
fn queues_that_the_controller_does_not_grant_are_closed() {
    let mut b = Bench::up_with(Config { queues: 4, ..small() }, nvme_model::Config { queues: 2, ..device() }, disks());
    b.turn();
    assert_eq!(b.controller.queues(), 2);
    let states: Vec<_> = b.queues.iter().map(|q| (q.is_open(), q.is_closed())).collect();
    assert_eq!(states, [(true, false), (true, false), (false, true), (false, true)]);
    b.clean();
}

#[test]
fn a_queue_is_no_longer_than_the_controllers() {
    let mut b = Bench::up_with(Config { depth: 128, ..small() }, nvme_model::Config { mqes: 3, ..device() }, disks());
    b.model.borrow_mut().faults.hold = true;
    (0..3).for_each(|block| _ = b.read_block(block));
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Busy));
    b.model.borrow_mut().faults.hold = false;
    b.turn();
    b.clean();
}

#[test]
fn without_queues_the_controller_is_only_asked_what_it_is() {
    let mut b = Bench::cold(Config { queues: 0, ..small() }, device(), disks());
    b.until(|b| b.controller.status() == ControllerStatus::Running);
    assert_eq!((b.controller.namespaces().len(), b.controller.queues()), (2, 0));
    b.controller.stop(b.now);
    b.until(|b| b.controller.status() == ControllerStatus::Stopped);
    assert_eq!(b.model.borrow().shutdowns, [1]);
    b.clean();
}

#[test]
fn a_stop_waits_for_requests_deletes_the_queues_and_notifies_the_controller() {
    let mut b = Bench::up_with(Config { queues: 2, ..small() }, device(), disks());
    b.model.borrow_mut().faults.hold = true;
    let id = b.read_block(4);
    b.controller.stop(b.now);
    b.pass(1000);
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Busy));
    b.pass(100_000);
    assert_eq!(b.controller.status(), ControllerStatus::Stopping);
    assert!(b.model.borrow().shutdowns.is_empty());
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| b.controller.status() == ControllerStatus::Stopped);
    assert_eq!(b.status_of(id), Status::Ok);
    assert_eq!(b.model.borrow().shutdowns, [1]);
    assert!(!b.bit.0.get());
    b.turn();
    assert!(b.queues.iter().all(nvme::IoQueue::is_closed));
    b.clean();
    // It can be started again.
    b.controller.restart();
    b.until(|b| b.queues[0].is_open());
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.answer(1, Operation::Read, (9, 1), &[into]), Ok(Status::Ok));
    b.clean();
}

#[test]
fn a_stop_does_not_wait_for_ever_and_answers_what_is_left() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    let id = b.read_block(4);
    b.controller.stop(b.now);
    b.until(|b| b.controller.status() == ControllerStatus::Stopped);
    b.turn();
    assert_eq!(b.status_of(id), Status::Gone);
    assert_eq!(b.model.borrow().shutdowns, [1]);
    b.clean();
}

#[test]
fn a_stop_in_the_bring_up_notifies_too() {
    for turns in 0..12 {
        let mut b = Bench::cold(small(), device(), disks());
        (0..turns).for_each(|_| b.pass(500));
        b.controller.stop(b.now);
        b.until(|b| b.controller.status() == ControllerStatus::Stopped);
        assert_eq!(b.model.borrow().shutdowns.len() as u32, b.model.borrow().starts.min(1), "after {turns}");
        assert!(!b.bit.0.get());
        b.clean();
    }
}

#[test]
fn a_panic_notifies_abruptly_and_leaves_an_absent_device_alone() {
    let b = Bench::up();
    nvme::registers::notify_abrupt_shutdown(b.controller.registers());
    assert_eq!(b.model.borrow().shutdowns, [2]);
    nvme::registers::notify_abrupt_shutdown(b.controller.registers());
    assert_eq!(b.model.borrow().shutdowns, [2], "it is told once");
    let b = Bench::up();
    b.model.borrow_mut().faults.gone = true;
    nvme::registers::notify_abrupt_shutdown(b.controller.registers());
    b.model.borrow_mut().faults.gone = false;
    assert!(b.model.borrow().shutdowns.is_empty());
    assert_eq!(b.model.borrow().accesses_while_gone, 1);
}
