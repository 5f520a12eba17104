//! A lone frame: when it can be seen, and who is told of it.

use super::{ALL, PLAIN};
use crate::backend::Net;
use crate::features::Features;
use crate::port::Port;
use crate::testing::Guest;
use crate::testing::Recorder;
use crate::uplink::NoNic;
use engine::control::{Command, Control, Reply};
use engine::engine::Engine;
use engine::schedule::{Fine, Limits, PerDevice, Schedule};
use engine::testing::looks_in_a_turn;

/// A guest sends `frames` frames to another, and the engine takes all of them in the next turn. Returns what can be seen when the
/// turn first reads the clock, and at its end: frames received, frames completed to the sender, interrupts.
fn seen<S: Schedule>(schedule: S, features: Features, frames: usize) -> [(u16, u16, usize); 2] {
    let control: &Control<Port> = Box::leak(Box::default());
    let interrupts: &Recorder = Box::leak(Box::default());
    let mut engine = Box::new(Engine::new(control, Net::<NoNic>::new(1, 1 << 40), schedule, interrupts));
    let (mut a, mut b) = (Guest::new(1, features, 256, 1500), Guest::new(2, features, 256, 1500));
    for (port, guest) in [&a, &b].into_iter().enumerate() {
        control.submit(Command::Attach(guest.attachment(port))).unwrap();
        engine.turn(0);
        assert_eq!(control.reply(), Some(Reply::Attached));
    }
    b.post(4, &[2048]);
    for _ in 0..frames {
        assert!(a.send(&a.frame([2, 0, 0, 0, 0, 2], 60, 0), &[]));
    }
    interrupts.take();

    let seen = looks_in_a_turn(&mut engine, || (b.rx.used_index(), a.tx.used_index(), interrupts.0.borrow().len()));
    let mut told = interrupts.take();
    told.sort_unstable();
    assert_eq!(told, [(0, a.vector(2)), (1, b.vector(1))], "{features:?}");
    engine.turn(10);
    assert_eq!(interrupts.take(), [], "{features:?}: told again");
    for _ in 0..frames {
        assert_eq!(b.receive().map(|frame| frame.len()), Some(60));
    }
    seen
}

#[test]
fn it_is_seen_before_its_time_is_counted_and_each_driver_is_told_once() {
    let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 10_000, least: 8, stall: 1_000 };
    for features in [ALL, PLAIN] {
        let seen = [seen::<Fine>(Fine::new(limits), features, 1), seen(PerDevice::new(64), features, 1)];
        assert_eq!(
            seen,
            [[(1, 1, 0), (1, 1, 2)]; 2],
            "{features:?}: given, taken, and nobody told, when the clock is looked at"
        );
    }
}

#[test]
fn as_many_as_a_visit_may_take_are_seen_at_its_end_and_if_there_was_room_for_more_at_once() {
    for features in [ALL, PLAIN] {
        let seen = [2, 3].map(|most| seen(PerDevice::new(most), features, 2));
        assert_eq!(seen, [[(0, 0, 0), (2, 2, 2)], [(2, 2, 0), (2, 2, 2)]], "{features:?}");
    }
}
