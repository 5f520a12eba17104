//! A lone frame: when it can be seen, and who is told of it.

use std::cell::Cell;

use super::{ALL, PLAIN, Recorder};
use crate::control::{Command, Control, Reply};
use crate::engine::Engine;
use crate::net::Net;
use crate::schedule::{Fine, Limits};
use crate::testing::Guest;
use crate::uplink::NoNic;

#[test]
fn it_is_seen_before_its_time_is_counted_and_each_driver_is_told_once() {
    for features in [ALL, PLAIN] {
        let control: &Control = Box::leak(Box::default());
        let interrupts: &Recorder = Box::leak(Box::default());
        let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 10_000, least: 8, stuck: 1_000 };
        let schedule: Fine = Fine::new(limits);
        let mut engine = Box::new(Engine::new(control, Net::<NoNic>::new(1, 1 << 40), schedule, interrupts));
        let (mut a, mut b) = (Guest::new(1, features, 256, 1500), Guest::new(2, features, 256, 1500));
        for (port, guest) in [&a, &b].into_iter().enumerate() {
            control.submit(Command::Attach(guest.attachment(port))).unwrap();
            engine.turn(0);
            assert_eq!(control.reply(), Some(Reply::Attached));
        }
        b.post(4, &[2048]);
        assert!(a.send(&a.frame([2, 0, 0, 0, 0, 2], 60, 0), &[]));
        interrupts.take();

        let (looks, first) = (Cell::new(0), Cell::new(None));
        engine.counted_turn(1, || {
            if looks.replace(looks.get() + 1) == 0 {
                first.set(Some((b.rx.used_index(), a.tx.used_index(), interrupts.0.borrow().len())));
            }
            1 + looks.get()
        });
        assert_eq!(first.get(), Some((1, 1, 0)), "{features:?}: given, taken, and nobody told, when the clock is looked at");
        let mut told = interrupts.take();
        told.sort_unstable();
        assert_eq!(told, [(0, a.vector(2)), (1, b.vector(1))], "{features:?}");
        engine.turn(10);
        assert_eq!(interrupts.take(), [], "{features:?}: told again");
        assert_eq!(b.receive().map(|frame| frame.len()), Some(60));
    }
}
