//! A lone request: when its completion is published, and who is notified.

use super::{ALL, PLAIN};
use crate::control::{Command, Control, Reply};
use crate::engine::Engine;
use crate::schedule::{Fine, Limits, PerDevice, Schedule};
use crate::testing::{Recorder, looks_in_a_turn};
use crate::tests::support::guest::Guest;
use crate::tests::support::relay::Relay;
use virtio::config::Features;

/// A guest sends `messages` messages to another, and the engine takes all of them in the next turn. Returns what can be seen when the
/// turn first reads the clock, and at its end: messages received, messages completed to the sender, interrupts.
fn seen<S: Schedule>(schedule: S, features: Features, messages: usize) -> [(u16, u16, usize); 2] {
    let control: &Control<()> = Box::leak(Box::default());
    let interrupts: &Recorder = Box::leak(Box::default());
    let mut engine = Box::new(Engine::new(control, Relay::default(), schedule, interrupts));
    let (mut a, mut b) = (Guest::new(0, features, 256), Guest::new(1, features, 256));
    for guest in [&a, &b] {
        control.submit(Command::Attach(guest.attachment(guest.slot))).unwrap();
        engine.turn(0);
        assert_eq!(control.reply(), Some(Reply::Attached));
    }
    b.post(4, 2048);
    for _ in 0..messages {
        assert!(a.send(&a.message(b.slot, 60, 0)));
    }
    interrupts.take();

    let seen = looks_in_a_turn(&mut engine, || (b.rx.used_index(), a.tx.used_index(), interrupts.0.borrow().len()));
    let mut told = interrupts.take();
    told.sort_unstable();
    assert_eq!(told, [(0, a.vector(2)), (1, b.vector(1))], "{features:?}");
    engine.turn(10);
    assert_eq!(interrupts.take(), [], "{features:?}: told again");
    for _ in 0..messages {
        assert_eq!(b.receive().map(|message| message.len()), Some(60));
    }
    seen
}

#[test]
fn it_is_seen_before_its_time_is_counted_if_the_turn_ends_with_it_and_each_driver_is_told_once() {
    let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 10_000, least: 8, stall: 1_000 };
    for features in [ALL, PLAIN] {
        let early = seen::<Fine>(Fine::new(limits), features, 1);
        assert_eq!(
            early,
            [(1, 1, 0), (1, 1, 2)],
            "{features:?}: given, taken, and nobody told, when the clock is looked at"
        );
        let late = seen(PerDevice::new(64), features, 1);
        assert_eq!(late, [(0, 0, 0), (1, 1, 2)], "{features:?}: there may be more visits in this turn");
    }
}

#[test]
fn what_fills_a_portion_is_seen_at_the_end_of_the_turn() {
    for features in [ALL, PLAIN] {
        let seen = [2, 3].map(|requests| {
            let limits = Limits { requests, bytes: 1 << 20, quantum: 1, least: 2, stall: 1_000 };
            seen::<Fine>(Fine::new(limits), features, 2)
        });
        assert_eq!(seen, [[(0, 0, 0), (2, 2, 2)], [(2, 2, 0), (2, 2, 2)]], "{features:?}");
    }
}
