//! What goes wrong: each request is answered once, and nothing is lost.

use nvme::{ControllerStatus, Event, Failure, Operation, Reason, Refused, Status, Trouble};

use crate::bench::{Bench, disks, small};

/// The events so far.
fn events(b: &mut Bench) -> Vec<Event> {
    std::iter::from_fn(|| b.controller.next_event()).collect()
}

/// The controller works.
#[track_caller]
fn works(b: &mut Bench) {
    b.answers.clear();
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.answer(1, Operation::Read, (77, 1), &[into]), Ok(Status::Ok));
    assert_eq!(b.contents(&[into]), b.disk(1, 77, 1));
    b.clean();
}

#[test]
fn a_command_that_hangs_is_aborted_and_its_request_says_so() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    let id = b.read_block(1);
    b.pass(29_000_000);
    b.pass(100_000);
    assert!(b.model.borrow().aborts.is_empty());
    b.until(|b| !b.answers.is_empty());
    assert_eq!((b.status_of(id), b.model.borrow().aborts.len()), (Status::TimedOut, 1));
    assert_eq!((b.controller.resets(), events(&mut b)), (0, vec![]));
    b.model.borrow_mut().faults.hold = false;
    works(&mut b);
}

#[test]
fn a_late_answer_is_taken_even_after_the_abort_was_sent() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    b.model.borrow_mut().faults.refuse_abort = true;
    let id = b.read_block(1);
    b.until(|b| !b.model.borrow().aborts.is_empty());
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| !b.answers.is_empty());
    assert_eq!((b.status_of(id), b.controller.resets()), (Status::Ok, 0));
    works(&mut b);
}

#[test]
fn a_lost_completion_costs_a_reset_and_the_other_requests_are_done_again() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.lose = 1;
    let lost = b.read_block(1);
    b.pass(10_000_000);
    // These are held by the device when it is reset, and are not late by then.
    b.pass(22_000_000);
    b.model.borrow_mut().faults.hold = true;
    let held: Vec<_> = (2..6).map(|block| b.read_block(block)).collect();
    b.until(|b| b.controller.resets() == 1);
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| b.answers.len() == 5);
    assert_eq!(b.status_of(lost), Status::TimedOut);
    held.iter().for_each(|id| assert_eq!(b.status_of(*id), Status::Ok));
    assert_eq!(events(&mut b), [Event::Reset(Reason::Queue(1, Trouble::TimedOut)), Event::Recovered]);
    works(&mut b);
}

#[test]
fn many_hung_commands_are_answered_too() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    b.model.borrow_mut().faults.refuse_abort = true;
    let ids: Vec<_> = (0..15).map(|block| b.read_block(block)).collect();
    b.until(|b| b.answers.len() == 15);
    ids.iter().for_each(|id| assert_eq!(b.status_of(*id), Status::TimedOut));
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| b.queues[0].is_open());
    works(&mut b);
}

#[test]
fn completions_that_cannot_be_true_cost_a_reset() {
    type Fault = fn(&mut nvme_model::Faults);
    let cases: [(Fault, Trouble); 4] = [
        (|f| f.double = 1, Trouble::UnknownCommand),
        (|f| f.forge = 1, Trouble::UnknownCommand),
        (|f| f.bad_head = 1, Trouble::BadCompletion),
        (|f| f.bad_queue = 1, Trouble::BadCompletion),
    ];
    for (fault, trouble) in cases {
        let mut b = Bench::up();
        fault(&mut b.model.borrow_mut().faults);
        let ids: Vec<_> = (0..6).map(|block| b.read_block(block)).collect();
        b.until(|b| b.answers.len() == 6 && b.queues[0].is_open());
        ids.iter().for_each(|id| assert_eq!(b.status_of(*id), Status::Ok));
        assert_eq!(b.controller.rejected_completions(), 1);
        assert_eq!(events(&mut b), [Event::Reset(Reason::Queue(1, trouble)), Event::Recovered]);
        works(&mut b);
    }
}

#[test]
fn a_completion_for_an_earlier_use_of_a_slot_is_not_taken() {
    let mut b = Bench::up();
    let first = b.read_block(1);
    b.turn();
    assert_eq!(b.status_of(first), Status::Ok);
    b.model.borrow_mut().faults.hold = true;
    let second = b.read_block(2);
    b.turn();
    // The same slot, in its first use.
    b.model.borrow_mut().forge(1, 0, 1, 1, 1 << 10, 0);
    b.turn();
    assert_eq!(b.answers.len(), 1, "the second request is not answered by a completion of the first");
    assert_eq!(b.controller.rejected_completions(), 1);
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| b.answers.len() == 2);
    assert_eq!(b.status_of(second), Status::Ok);
}

#[test]
fn a_wrong_phase_tag_is_a_completion_that_does_not_come() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.bad_phase = 1;
    let id = b.read_block(1);
    b.until(|b| b.answers.len() == 1 && b.queues[0].is_open());
    assert_eq!((b.status_of(id), b.controller.resets()), (Status::TimedOut, 1));
    works(&mut b);
}

#[test]
fn a_fatal_status_costs_a_reset_and_no_request() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    let ids: Vec<_> = (0..3).map(|block| b.read_block(block)).collect();
    b.turn();
    b.model.borrow_mut().faults.fatal = true;
    b.pass(1000);
    let into = b.piece(&[0; 512], 0, true);
    assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Busy));
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| b.answers.len() == 3);
    ids.iter().for_each(|id| assert_eq!(b.status_of(*id), Status::Ok));
    assert_eq!(events(&mut b), [Event::Reset(Reason::FatalStatus), Event::Recovered]);
    works(&mut b);
}

#[test]
fn a_device_that_is_reset_again_and_again_is_given_up() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.forge = u32::MAX;
    let id = b.read_block(1);
    // It is given to the device four times in all.
    b.until(|b| !b.answers.is_empty() && b.queues[0].is_open());
    assert_eq!((b.status_of(id), b.controller.resets()), (Status::Reset, 4));
    let id = b.read_block(1);
    let last = Reason::Queue(1, Trouble::UnknownCommand);
    b.until(|b| b.controller.status() == ControllerStatus::Failed(Failure::TooManyResets(last)));
    b.turn();
    assert_eq!(b.status_of(id), Status::Gone);
    let mut model = b.model.borrow_mut();
    model.faults = nvme_model::Faults::default();
    assert!(!b.bit.0.get());
    drop(model);
    let into = b.piece(&[0; 512], 0, true);
    b.turn();
    assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Gone));
    // The operator can have it tried again.
    b.controller.restart();
    b.until(|b| b.queues[0].is_open());
    works(&mut b);
}

#[test]
fn a_device_that_leaves_the_bus_is_not_touched_again_and_every_request_is_answered() {
    for zeroes in [false, true] {
        let mut b = Bench::up_with(nvme::Config { queues: 2, ..small() }, Default::default(), disks());
        b.model.borrow_mut().faults.hold = true;
        let ids: Vec<_> = (0..4).map(|block| b.read_block(block)).collect();
        b.turn();
        b.model.borrow_mut().faults.gone = true;
        b.model.borrow_mut().faults.zeroes = zeroes;
        b.pass(1000);
        assert_eq!(b.controller.status(), ControllerStatus::Failed(Failure::Gone));
        b.turn();
        ids.iter().for_each(|id| assert_eq!(b.status_of(*id), Status::Gone));
        // Of zeroes it needs a second one.
        let reads = if zeroes { 2 } else { 1 };
        assert_eq!(b.model.borrow().accesses_while_gone, reads, "only the read that saw it");
        let into = b.piece(&[0; 512], 0, true);
        assert_eq!(b.submit(1, Operation::Read, (0, 1), &[into]), Err(Refused::Gone));
        b.pass(60_000_000);
        assert_eq!(b.model.borrow().accesses_while_gone, reads);
        assert_eq!(events(&mut b), [Event::Failed(Failure::Gone)]);
        b.clean();
        // It comes back as after power-on.
        b.model.borrow_mut().faults = nvme_model::Faults::default();
        b.model.borrow_mut().write(0x14, 0);
        b.controller.restart();
        b.until(|b| b.queues[0].is_open());
        works(&mut b);
    }
}

#[test]
fn a_device_that_leaves_the_bus_in_its_bring_up_is_given_up_at_once() {
    for turns in 0..14 {
        let mut b = Bench::cold(small(), Default::default(), disks());
        (0..turns).for_each(|_| b.pass(500));
        b.model.borrow_mut().faults.gone = true;
        b.turn();
        assert_eq!(b.controller.status(), ControllerStatus::Failed(Failure::Gone), "after {turns}");
        assert!(b.model.borrow().accesses_while_gone <= 1);
        b.turn();
        b.clean();
    }
}

#[test]
fn silent_or_lying_admin_queues_cost_a_reset() {
    type Fault = fn(&mut nvme_model::Faults);
    let cases: [(Fault, Reason); 2] =
        [(|f| f.admin_silent = true, Reason::AdminTimedOut), (|f| f.admin_forge = true, Reason::AdminForged)];
    for (fault, reason) in cases {
        let mut b = Bench::up();
        fault(&mut b.model.borrow_mut().faults);
        b.controller.refresh_health();
        b.until(|b| b.controller.resets() == 1);
        b.model.borrow_mut().faults = nvme_model::Faults::default();
        b.until(|b| b.queues[0].is_open());
        assert_eq!(events(&mut b), [Event::Reset(reason), Event::Recovered]);
        works(&mut b);
        // And in the bring-up.
        let mut b = Bench::cold(small(), Default::default(), disks());
        fault(&mut b.model.borrow_mut().faults);
        let failed = ControllerStatus::Failed(Failure::TooManyResets(reason));
        b.until(|b| b.controller.status() == failed);
    }
}

#[test]
fn admin_commands_that_fail_cost_what_they_are_for() {
    for (opcode, runs) in [(0x06, false), (0x09, false), (0x05, false), (0x01, false), (0x02, true), (0x0c, true)] {
        let mut b = Bench::cold(small(), Default::default(), disks());
        b.model.borrow_mut().faults.admin_status.insert(opcode, 0x4006);
        b.until(|b| b.controller.status() != ControllerStatus::Starting);
        assert_eq!(b.controller.status() == ControllerStatus::Running, runs, "opcode {opcode:#x}");
        for _ in 0..10 {
            b.pass(1000);
        }
        b.clean();
    }
}

#[test]
fn another_disk_in_the_same_place_is_not_taken_for_the_first() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    let id = b.read_block(1);
    b.turn();
    b.model.borrow_mut().config.serial = "OTHER".into();
    b.model.borrow_mut().faults.fatal = true;
    b.until(|b| b.controller.status() == ControllerStatus::Failed(Failure::OtherSerial));
    b.turn();
    assert_eq!(b.status_of(id), Status::Gone);
    b.clean();
}

#[test]
fn a_cancelled_request_is_aborted_and_answered_once() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.hold = true;
    let (first, second) = (b.read_block(1), b.read_block(2));
    b.turn();
    assert!(b.queues[0].cancel(first) && !b.queues[0].cancel(99));
    b.until(|b| !b.answers.is_empty());
    assert_eq!(b.status_of(first), Status::Cancelled);
    // A device that does not abort: the request ends as it would have.
    b.model.borrow_mut().faults.refuse_abort = true;
    assert!(b.queues[0].cancel(second));
    b.until(|b| b.model.borrow().aborts.len() == 2);
    b.model.borrow_mut().faults.hold = false;
    b.turn();
    assert_eq!((b.status_of(second), b.controller.resets()), (Status::Ok, 0));
    works(&mut b);
}

#[test]
fn a_request_that_waits_for_a_retry_is_cancelled_at_once() {
    let mut b = Bench::up();
    b.model.borrow_mut().faults.io_status = vec![0x082];
    let id = b.read_block(1);
    b.turn();
    assert!(b.answers.is_empty() && b.queues[0].cancel(id));
    b.turn();
    assert_eq!(b.status_of(id), Status::Cancelled);
    works(&mut b);
}

#[test]
fn requests_on_all_queues_survive_the_fault_of_one() {
    let mut b = Bench::up_with(nvme::Config { queues: 2, ..small() }, Default::default(), disks());
    b.model.borrow_mut().faults.hold = true;
    let into = b.piece(&[0; 512], 0, true);
    let request = nvme::Request { id: 1000, namespace: 1, operation: Operation::Read, first: 3, blocks: 1 };
    let now = b.now;
    b.queues[1].submit(&request, &[into], now).unwrap();
    b.queues[1].notify();
    b.turn();
    b.model.borrow_mut().forge(1, 0, 0, 1, 0x7fff, 0);
    b.until(|b| b.controller.resets() == 1);
    b.model.borrow_mut().faults.hold = false;
    b.until(|b| !b.answers.is_empty());
    assert_eq!(b.status_of(1000), Status::Ok);
    assert_eq!(b.contents(&[into]), b.disk(1, 3, 1));
    works(&mut b);
}

#[test]
fn no_queue_writes_a_doorbell_while_the_controller_is_reset() {
    // The second queue's owner does not poll: the reset waits for it, and nothing is written meanwhile.
    let mut b = Bench::up_with(nvme::Config { queues: 2, ..small() }, Default::default(), disks());
    let mut idle = b.queues.pop().unwrap();
    b.model.borrow_mut().faults.fatal = true;
    for _ in 0..100 {
        b.pass(1000);
    }
    assert_eq!((b.controller.resets(), b.model.borrow().starts), (1, 1));
    for _ in 0..10 {
        idle.poll(b.now, |_, _| ());
        b.pass(1000);
    }
    assert_eq!(b.model.borrow().starts, 2);
    b.queues.push(idle);
    b.until(|b| b.queues.iter().all(nvme::IoQueue::is_open));
    works(&mut b);
}
