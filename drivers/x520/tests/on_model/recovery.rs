//! Link loss, hung queues, DMA faults, stopping.

use x520::nic::{Link, Nic, Outcome, Refused};
use x520::{Device, Status};
use x520_model::made::frame;
use x520_model::{Diagnostic, Faults};

use crate::bench::{Bench, small};

fn tokens(outcome: Outcome, of: core::ops::Range<u64>) -> Vec<(u64, Outcome)> {
    of.map(|t| (t, outcome)).collect()
}

/// Checks that the driver resets the device once, and that the next frame arrives.
#[track_caller]
fn recovers_and_receives(b: &mut Bench) {
    b.until(|b| b.nic.statistics().recoveries == 1);
    b.until_up();
    b.deliver(&frame(60, 3));
    assert_eq!(b.received(0), [frame(60, 3)]);
    b.clean();
}

#[test]
fn on_link_loss_pending_frames_are_dropped_and_given_back_only_after_dma_has_ended() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().set_cable(false);
    let part = b.payload(&frame(500, 1));
    for i in 0..5 {
        b.send(&frame(60, 0), &[part], i).unwrap();
    }
    b.nic.flush(0);
    b.pass(1_000);
    assert_eq!(b.nic.link(), Link::Down);
    assert_eq!(b.send(&frame(60, 0), &[], 9), Err(Refused::NotReady));
    assert_eq!(b.reclaim(), [], "the device may still read them");
    b.pass(1_000);
    assert_eq!(b.reclaim(), []);
    for _ in 0..15 {
        b.pass(1_000);
    }
    assert_eq!(b.reclaim(), tokens(Outcome::Dropped, 0..5));
    b.memory.revoke(part.address(), usize::from(part.len()));
    b.model.borrow_mut().set_cable(true);
    b.until_up();
    b.send(&frame(60, 0), &[], 10).unwrap();
    assert_eq!(b.sent().len(), 1, "and none of the old ones");
    assert_eq!(b.reclaim(), tokens(Outcome::Sent, 10..11));
    b.clean();
}

#[test]
fn link_loss_with_nothing_pending_costs_no_reset() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().set_cable(false);
    b.pass(1_000);
    assert_eq!((b.nic.link(), b.nic.status()), (Link::Down, Status::Running));
    b.model.borrow_mut().set_cable(true);
    b.until_up();
    assert_eq!(b.nic.statistics().recoveries, 0);
    b.deliver(&frame(60, 1));
    assert_eq!(b.received(0).len(), 1);
    b.clean();
}

#[test]
fn a_hung_transmit_queue_is_reset_and_nothing_is_lost() {
    let faults: [fn(&mut Faults); 2] = [|f| f.transmit_stalled = true, |f| f.no_write_back = true];
    for fault in faults {
        let mut b = Bench::up(small());
        b.send(&frame(60, 0), &[], 0).unwrap();
        b.sent();
        assert_eq!(b.reclaim(), tokens(Outcome::Sent, 0..1));
        fault(&mut b.model.borrow_mut().faults);
        for i in 1..6 {
            b.send(&frame(60, 0), &[], i).unwrap();
        }
        b.nic.flush(0);
        b.send(&frame(60, 0), &[], 6).unwrap();
        b.until(|b| b.nic.statistics().recoveries == 1);
        b.model.borrow_mut().faults = Faults::default();
        b.until_up();
        assert_eq!(b.send(&frame(60, 0), &[], 9), Err(Refused::Full), "the old frames come first");
        assert_eq!(b.reclaim(), tokens(Outcome::Dropped, 1..7));
        b.send(&frame(60, 3), &[], 9).unwrap();
        assert_eq!(b.sent().last(), Some(&frame(60, 3)));
        assert_eq!(b.reclaim(), tokens(Outcome::Sent, 9..10));
        b.clean();
    }
}

#[test]
fn a_queue_that_is_slow_but_moves_is_left_alone() {
    let mut b = Bench::up(small());
    for i in 0..5 {
        b.send(&frame(60, 0), &[], i).unwrap();
        b.nic.flush(0);
        b.pass(900_000);
        assert_eq!(b.reclaim().len(), 1);
    }
    b.send(&frame(60, 0), &[], 6).unwrap();
    (0..5).for_each(|_| b.pass(900_000));
    assert_eq!(b.nic.statistics().recoveries, 0, "not flushed: not the device's fault");
    b.clean();
}

#[test]
fn frames_that_are_done_but_not_reclaimed_are_no_hang() {
    let mut b = Bench::up(small());
    b.send(&frame(60, 0), &[], 6).unwrap();
    b.sent();
    (0..5).for_each(|_| b.pass(900_000));
    assert_eq!(b.nic.statistics().recoveries, 0);
    assert_eq!(b.reclaim(), tokens(Outcome::Sent, 6..7));
}

#[test]
fn a_receive_side_that_stands_still_is_reset() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().faults.receive_stalled = true;
    let mut passes = 0;
    while b.nic.statistics().recoveries == 0 {
        passes += 1;
        assert!(passes < 30, "not within 3 s");
        (0..500).for_each(|_| b.deliver(&frame(1000, 1)));
        assert_eq!(b.received(0).len(), 0);
        b.pass(100_000);
    }
    b.model.borrow_mut().faults.receive_stalled = false;
    b.until_up();
    b.deliver(&frame(60, 9));
    assert_eq!(b.received(0), [frame(60, 9)]);
    b.clean();
}

#[test]
fn a_receive_descriptor_that_is_never_written_back_is_noticed() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().faults.no_write_back = true;
    b.deliver(&frame(60, 1));
    b.run();
    b.model.borrow_mut().faults.no_write_back = false;
    b.deliver(&frame(60, 2));
    assert_eq!(b.received(0).len(), 0, "the second is behind the first");
    recovers_and_receives(&mut b);
}

#[test]
fn frames_that_nobody_polls_for_are_no_hang() {
    let mut b = Bench::up(small());
    b.deliver(&frame(60, 1));
    (0..50).for_each(|_| b.pass(100_000));
    assert_eq!((b.nic.statistics().recoveries, b.received(0).len()), (0, 1));
    b.clean();
}

#[test]
fn a_dma_fault_halts_the_queue_and_a_reset_gets_it_going() {
    let mut b = Bench::up(small());
    let part = b.payload(&frame(500, 1));
    b.memory.revoke(part.address(), 500);
    b.send(&frame(60, 0), &[part], 0).unwrap();
    b.send(&frame(60, 0), &[], 1).unwrap();
    assert_eq!(b.sent().len(), 0);
    assert!(matches!(b.model.borrow_mut().take_diagnostics()[..], [Diagnostic::NotGranted { write: false, .. }]));
    b.until(|b| b.nic.statistics().recoveries == 1);
    b.until_up();
    assert_eq!(b.reclaim(), tokens(Outcome::Dropped, 0..2));
    b.send(&frame(60, 0), &[], 2).unwrap();
    assert_eq!(b.sent().len(), 1);
    b.clean();
}

#[test]
fn a_dma_fault_of_the_receive_side_is_noticed_by_the_frames_that_are_missed_from_then_on() {
    for receive_queues in [1, 2] {
        let mut b = Bench::up(x520::Config { receive_queues, ..small() });
        b.memory.revoke(b.own.bus, b.own.len);
        b.deliver(&frame(60, 1));
        b.run();
        assert!(matches!(b.model.borrow_mut().take_diagnostics()[..], [Diagnostic::NotGranted { .. }]));
        b.memory.grant(b.own.bus, b.own.len, x520_model::memory::Access::ReadWrite);
        // A single queue holds frames back until the packet buffer is full. Each of several queues drops its own
        // frames.
        (0..if receive_queues == 1 { 400 } else { 1 }).for_each(|_| b.deliver(&frame(1514, 2)));
        assert_eq!(b.received(0).len(), 0, "the queue stands still");
        recovers_and_receives(&mut b);
    }
}

#[test]
fn one_queue_of_several_that_stands_still_is_noticed_though_the_others_work() {
    let addresses = vec![x520::nic::Unicast { address: [2, 0, 0, 0, 1, 1], queue: 1 }];
    let filter = x520::Filter { addresses, ..x520::Filter::default() };
    let config = x520::Config { receive_queues: 20, steering: x520::Steering::Addresses, ..small() };
    let mut b = Bench::with(config, filter, x520_model::Config::default());
    b.until_up();
    let mut guests = frame(60, 1);
    guests[..6].copy_from_slice(&[2, 0, 0, 0, 1, 1]);
    b.memory.revoke(b.own.bus, b.own.len);
    b.deliver(&guests);
    b.run();
    b.model.borrow_mut().take_diagnostics();
    b.memory.grant(b.own.bus, b.own.len, x520_model::memory::Access::ReadWrite);
    b.deliver(&guests);
    b.until(|b| b.nic.statistics().recoveries == 1);
    b.until_up();
    // Dropped frames alone are no sign of a hang.
    for _ in 0..3 {
        (0..100).for_each(|_| b.deliver(&guests));
        b.deliver(&frame(60, 2));
        assert_eq!((b.received(0).len(), b.received(17).len()), (1, 0));
        assert!((48..64).contains(&b.received(1).len()), "as many as there were buffers");
        b.pass(1_000_001);
    }
    assert_eq!(b.nic.statistics().recoveries, 1);
    assert!(b.nic.statistics().no_buffer > 3 * 36);
    b.clean();
}

#[test]
fn frames_that_wait_in_a_queue_that_nobody_polls_are_no_hang() {
    let mut b = Bench::up(x520::Config { steering: x520::Steering::Addresses, receive_queues: 2, ..small() });
    for _ in 0..5 {
        b.deliver(&frame(60, 1));
        assert_eq!(b.received(1).len(), 0, "it is for the other");
        b.pass(1_000_001);
    }
    assert_eq!((b.nic.statistics().recoveries, b.received(0).len()), (0, 5));
    b.clean();
}

#[test]
fn a_stopped_device_does_no_dma_and_has_given_everything_back() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().faults.transmit_stalled = true;
    b.send(&frame(60, 0), &[], 0).unwrap();
    b.nic.flush(0);
    let now = b.now;
    b.nic.stop(now);
    b.until(|b| b.nic.status() == Status::Stopped);
    assert_eq!(b.reclaim(), tokens(Outcome::Dropped, 0..1));
    b.memory.revoke(b.own.bus, b.own.len);
    b.model.borrow_mut().faults = Faults::default();
    b.model.borrow_mut().advance(1_000_000);
    let before = b.model.borrow().transactions();
    b.deliver(&frame(60, 0));
    b.run();
    assert_eq!(b.model.borrow().transactions(), before);
    b.pass(1_000_000);
    assert_eq!(b.nic.status(), Status::Stopped);
    b.clean();
}

#[test]
fn stopping_in_the_middle_of_a_reset_disturbs_it_not() {
    for at in [0, 1_000, 2_000, 5_000, 12_000, 15_000] {
        let mut b = Bench::up(small());
        let now = b.now;
        b.nic.restart(now);
        b.pass(at);
        let now = b.now;
        b.nic.stop(now);
        b.until(|b| b.nic.status() == Status::Stopped);
        b.clean();
        let now = b.now;
        b.nic.restart(now);
        b.until_up();
        b.clean();
    }
}

#[test]
fn a_device_that_leaves_the_bus_keeps_its_frames_until_someone_answers_for_its_dma() {
    let mut b = Bench::up(small());
    b.send(&frame(60, 0), &[], 0).unwrap();
    b.nic.flush(0);
    b.model.borrow_mut().faults.gone = true;
    b.pass(1_000);
    assert!(matches!(b.nic.status(), Status::Failed(_)));
    assert_eq!((b.nic.link(), b.reclaim()), (Link::Down, vec![]));
    // SAFETY: the model does nothing while it is gone.
    unsafe { b.nic.assume_no_dma() };
    assert_eq!(b.reclaim(), tokens(Outcome::Dropped, 0..1));
    assert_eq!(b.nic.outstanding(), 0);
}

#[test]
fn a_tail_that_the_device_has_not_heard_of_is_found_out_without_a_frame_being_lost() {
    let mut b = Bench::up(x520::Config { receive_queues: 2, ..small() });
    (0..63).for_each(|i| b.deliver(&frame(60, i)));
    b.run();
    b.model.borrow_mut().faults.gone = true;
    b.nic.receive(0, 63, |_| ());
    b.model.borrow_mut().faults.gone = false;
    b.pass(1_000_001);
    assert_eq!(b.nic.statistics().recoveries, 1);
    b.until_up();
    b.deliver(&frame(60, 1));
    assert_eq!(b.received(0).len(), 1);
    b.clean();
}
