use igb::nic::{Link, Nic, Outcome};
use igb::{Device, Failure, Kind, Status};
use igb_model::made::frame;

use crate::bench::{Bench, KINDS, small};

#[test]
fn a_hung_transmit_queue_is_reset_and_its_tokens_come_back_once() {
    for kind in KINDS {
        let mut b = Bench::up(kind, small());
        b.model.borrow_mut().faults.transmit_stalled = true;
        for token in 0..5 {
            b.send(&frame(60, 0), &[], token).expect("room");
        }
        b.nic.flush(0);
        let begin = b.now;
        b.until(|b| b.nic.statistics().recoveries == 1);
        assert!((1_000_000..1_100_000).contains(&(b.now - begin)), "{} us", b.now - begin);
        assert_eq!(b.reclaim(), [], "the device may still be reading");
        b.model.borrow_mut().faults.transmit_stalled = false;
        b.until(|b| b.nic.status() == Status::Running);
        let back: Vec<_> = (0..5).map(|t| (t, Outcome::Dropped)).collect();
        assert_eq!(b.reclaim(), back);
        b.until_up();
        b.send(&frame(60, 3), &[], 9).expect("room");
        assert_eq!(b.sent(), [frame(60, 3)]);
        assert_eq!(b.reclaim(), [(9, Outcome::Sent)]);
        assert_eq!(b.nic.outstanding(), 0);
        b.clean();
    }
}

#[test]
fn a_receive_queue_that_gets_nothing_while_frames_are_missed_is_reset() {
    for stalled in [true, false] {
        let mut b = Bench::up(Kind::I82576, small());
        if stalled {
            b.model.borrow_mut().faults.receive_stalled = true;
        } else {
            b.model.borrow_mut().faults.no_write_back = true;
        }
        for _ in 0..40 {
            b.deliver(&frame(60, 0));
            b.pass(100_000);
            b.received();
            if b.nic.statistics().recoveries > 0 {
                break;
            }
        }
        assert_eq!(b.nic.statistics().recoveries, 1);
        b.model.borrow_mut().faults = igb_model::Faults::default();
        b.until_up();
        b.deliver(&frame(60, 4));
        assert_eq!(b.received(), [frame(60, 4)]);
    }
}

#[test]
fn a_receive_queue_that_waits_for_the_rest_of_a_frame_which_was_never_written_is_reset() {
    let mut b = Bench::up(Kind::I82576, small());
    b.model.borrow_mut().faults.bad_write_back = true;
    b.deliver(&frame(60, 1));
    b.model.borrow_mut().faults = igb_model::Faults { no_write_back: true, ..Default::default() };
    b.deliver(&frame(60, 2));
    b.model.borrow_mut().faults = igb_model::Faults::default();
    for _ in 0..40 {
        b.deliver(&frame(60, 3));
        b.pass(100_000);
        b.received();
    }
    assert_eq!(b.nic.statistics().recoveries, 1);
    b.until_up();
    b.deliver(&frame(60, 4));
    assert_eq!(b.received(), [frame(60, 4)]);
}

#[test]
fn frames_in_the_queue_when_the_link_goes_are_dropped_after_a_reset() {
    let mut b = Bench::up(Kind::I350, small());
    b.model.borrow_mut().faults.transmit_stalled = true;
    b.send(&frame(60, 0), &[], 7).expect("room");
    b.nic.flush(0);
    b.model.borrow_mut().set_cable(false);
    b.until(|b| b.nic.statistics().recoveries == 1);
    b.until(|b| b.nic.status() == Status::Running);
    assert_eq!(b.reclaim(), [(7, Outcome::Dropped)]);
    b.pass(3_000_000);
    assert_eq!(b.nic.statistics().recoveries, 1, "a link that stays down is no reason for a second");
}

#[test]
fn a_device_that_leaves_the_bus_fails_and_gives_back_what_it_had() {
    let mut b = Bench::up(Kind::I82576, small());
    b.send(&frame(60, 0), &[], 3).expect("room");
    b.model.borrow_mut().faults.gone = true;
    b.pass(1_000);
    assert_eq!((b.nic.status(), b.nic.link()), (Status::Failed(Failure::Gone), Link::Down));
    assert_eq!(b.received(), Vec::<Vec<u8>>::new());
    assert_eq!(b.reclaim(), [], "nobody knows yet what it does");
    // SAFETY: the model does nothing while it is gone.
    unsafe { b.nic.assume_no_dma() };
    assert_eq!(b.reclaim(), [(3, Outcome::Dropped)]);
    b.model.borrow_mut().faults.gone = false;
    let now = b.now;
    b.nic.restart(now);
    b.until_up();
    b.send(&frame(60, 5), &[], 4).expect("room");
    assert_eq!(b.sent(), [frame(60, 5)]);
}

#[test]
fn a_stopped_device_is_reset_and_stays_so() {
    let mut b = Bench::up(Kind::I82576, small());
    let now = b.now;
    b.nic.stop(now);
    b.until(|b| b.nic.status() == Status::Stopped);
    b.deliver(&frame(60, 0));
    b.pass(2_000_000);
    assert_eq!((b.nic.status(), b.received()), (Status::Stopped, vec![]));
    let now = b.now;
    b.nic.restart(now);
    b.until_up();
    b.clean();
}
