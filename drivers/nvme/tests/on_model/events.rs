//! Asynchronous events.

use nvme::{Event, Operation, Refused, Status, Warnings};
use nvme_model::Namespace;

use crate::bench::Bench;

#[test]
fn a_namespace_that_grows_is_told_and_its_new_blocks_can_be_used() {
    let mut b = Bench::up();
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.submit(1, Operation::Read, (16384, 1), &[into]), Err(Refused::Range));
    b.model.borrow_mut().resize(1, 20000);
    (0..10).for_each(|_| b.pass(1000));
    assert_eq!(b.controller.next_event(), Some(Event::Capacity(1, 20000)));
    assert_eq!(b.controller.next_event(), None);
    assert_eq!(b.queues[0].namespace(1).unwrap().blocks, 20000);
    assert_eq!(b.answer(1, Operation::Read, (16384, 1), &[into]), Ok(Status::Ok));
    // And again: the request for events was armed again.
    b.model.borrow_mut().resize(1, 10000);
    (0..10).for_each(|_| b.pass(1000));
    assert_eq!(b.controller.next_event(), Some(Event::Capacity(1, 10000)));
    assert_eq!(b.submit(1, Operation::Read, (16384, 1), &[into]), Err(Refused::Range));
    b.clean();
}

#[test]
fn namespaces_come_go_and_change_their_format() {
    let mut b = Bench::up();
    {
        let mut model = b.model.borrow_mut();
        model.namespaces = vec![Namespace::new(2, 9, 100), Namespace::new(7, 9, 8)];
        model.namespaces_changed();
    }
    (0..10).for_each(|_| b.pass(1000));
    let events: Vec<_> = std::iter::from_fn(|| b.controller.next_event()).collect();
    assert_eq!(events, [Event::Namespace(1), Event::Namespace(2), Event::Namespace(7)]);
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Namespace));
    assert_eq!(b.answer(7, Operation::Read, (7, 1), &[into]), Ok(Status::Ok));
    // A guest that still counts in blocks of 4,096 bytes gets no data of other blocks.
    let into = b.piece(&[0; 4096], 0, true);
    assert_eq!(b.submit(2, Operation::Read, (0, 1), &[into]), Err(Refused::Length));
    b.clean();
}

#[test]
fn a_health_warning_is_told_once_and_shown() {
    let mut b = Bench::up();
    b.model.borrow_mut().warn(0b100);
    b.model.borrow_mut().warn(0b100);
    (0..10).for_each(|_| b.pass(1000));
    assert_eq!(b.controller.next_event(), Some(Event::Health(Warnings(4))));
    assert_eq!(b.controller.next_event(), None);
    assert!(b.controller.health().unwrap().to_string().starts_with("WARNING: reliability degraded"));
    b.clean();
}

#[test]
fn an_error_event_shows_the_newest_entry_of_the_log() {
    let mut b = Bench::up();
    // Type 0, log page 1.
    b.model.borrow_mut().event(1 << 16);
    (0..10).for_each(|_| b.pass(1000));
    let Some(Event::Error(entry)) = b.controller.next_event() else { panic!() };
    assert_eq!(entry.to_string(), "error 1: type 0x2 code 0x81, namespace 1, block 7, queue 1");
    assert_eq!(b.controller.last_error(), Some(&entry));
    b.clean();
}

#[test]
fn a_flood_of_events_is_bounded() {
    let mut b = Bench::up();
    for round in 0..200 {
        b.model.borrow_mut().resize(1, 1000 + round);
        b.model.borrow_mut().event(0xffff_ffff);
        (0..6).for_each(|_| b.pass(1000));
    }
    (0..200).for_each(|_| b.pass(1000));
    let told = std::iter::from_fn(|| b.controller.next_event()).count();
    assert_eq!(told, 64);
    assert!(b.controller.lost_events() > 0);
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.answer(1, Operation::Read, (0, 1), &[into]), Ok(Status::Ok));
}
