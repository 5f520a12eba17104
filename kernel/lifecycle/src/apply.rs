//! Changes of guests that are applied, from the beginning to `confirm` or the way back, as a state machine without side effects.
//!
//! ```text
//!            begin                 tick ... the last step         confirm
//!  nothing ────────▶ running ─┬──────────────────────────▶ done ◀──────── unconfirmed
//!                             ├─ with a time for `confirm` ─────────────▶ unconfirmed ─┐
//!                             └─ a step fails ─▶ failed (and goes back, if it may)     │ the time is over
//!                    running (the way back) ◀──────────────────────────────────────────┘
//! ```

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

use control::{ApplyState, Joined, READ_TOO_SOON, Text, sentence, write};

use crate::rollout::{Deed, Order, Rollout, Seen};

/// Milliseconds between two files that are read. Reading one takes a millisecond or two of the control core.
const READ_PERIOD: u64 = 100;

/// What carries out the changes. `C` is the change of one guest.
pub trait Guests<C> {
    /// How the guest of a change is.
    fn seen(&self, change: &C) -> Seen;

    /// Carries out an order for the guest of a change.
    ///
    /// # Errors
    /// It cannot be carried out; the text says why.
    fn obey(&mut self, order: Order, change: &C) -> Result<(), Text>;
}

/// What is applied. `C` is the change of one guest, `S` what ran before.
#[derive(Debug)]
pub struct Apply<C, S> {
    running: Option<Running<C, S>>,
    unconfirmed: Option<Unconfirmed<S>>,
    state: ApplyState,
    text: String,
    /// When a file may be read again, in milliseconds.
    read_at: u64,
}

/// What is being carried out.
#[derive(Debug)]
struct Running<C, S> {
    rollout: Rollout,
    changes: Vec<C>,
    /// What ran before, and the milliseconds for `confirm`. `None`: it stays, or it is the way back.
    before: Option<(S, u64)>,
    goes_back: bool,
}

/// What goes back without `confirm`.
#[derive(Debug)]
struct Unconfirmed<S> {
    before: S,
    /// When, in milliseconds.
    until: u64,
}

impl<C, S> Default for Apply<C, S> {
    fn default() -> Self {
        Self { running: None, unconfirmed: None, state: ApplyState::Nothing, text: String::new(), read_at: 0 }
    }
}

impl<C: Display, S> Apply<C, S> {
    /// Notes that a file is read now, also if only to look what it would change. `now`: milliseconds.
    ///
    /// # Errors
    /// Another one was read just before.
    pub fn read(&mut self, now: u64) -> Result<(), Text> {
        if now < self.read_at {
            return Err(READ_TOO_SOON.into());
        }
        self.read_at = now.saturating_add(READ_PERIOD);
        Ok(())
    }

    /// Whether nothing is being carried out, and nothing may go back.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.running.is_none() && self.unconfirmed.is_none()
    }

    /// Checks whether something may be applied.
    ///
    /// # Errors
    /// Something is being carried out, or waits for `confirm`.
    pub fn check_idle(&self) -> Result<(), Text> {
        match (&self.running, &self.unconfirmed) {
            (Some(_), _) => Err("what was applied before is still being carried out".into()),
            (None, Some(_)) => Err("what was applied before waits for `confirm`".into()),
            (None, None) => Ok(()),
        }
    }

    /// Begins. `before`: what ran before, and the milliseconds after which it comes back without `confirm`; `patience`: most
    /// milliseconds for a guest to stop, and to start; `text`: what is said of it until it is carried out.
    ///
    /// # Errors
    /// Something is being carried out, or waits for `confirm`.
    pub fn begin(
        &mut self,
        changes: Vec<C>,
        deeds: Vec<Deed>,
        before: Option<(S, u64)>,
        patience: u64,
        text: String,
    ) -> Result<(), Text> {
        self.check_idle()?;
        self.run(changes, deeds, before, patience, false);
        self.text = text;
        Ok(())
    }

    fn run(&mut self, changes: Vec<C>, deeds: Vec<Deed>, before: Option<(S, u64)>, patience: u64, goes_back: bool) {
        self.running = Some(Running { rollout: Rollout::new(deeds, patience), changes, before, goes_back });
        self.state = ApplyState::Running;
    }

    /// Keeps what was applied.
    ///
    /// # Errors
    /// Nothing waits for it.
    pub fn confirm(&mut self) -> Result<(), Text> {
        if let Some(running) = &mut self.running
            && running.before.take().is_some()
        {
            return Ok(());
        }
        self.unconfirmed.take().ok_or("nothing waits for `confirm`")?;
        if self.state == ApplyState::Unconfirmed {
            self.state = ApplyState::Done;
        }
        Ok(())
    }

    /// The changes that are being carried out.
    pub fn changes(&self) -> impl Iterator<Item = &C> {
        self.running.iter().flat_map(|running| &running.changes)
    }

    /// What may come back.
    pub fn before(&self) -> impl Iterator<Item = &S> {
        let running = self.running.iter().filter_map(|running| running.before.as_ref()).map(|(before, _)| before);
        running.chain(self.unconfirmed.iter().map(|unconfirmed| &unconfirmed.before))
    }

    /// Carries out the next order. Returns true if that was the last: the text says what became of it. Call it once a tick. `now`:
    /// milliseconds that never decrease.
    pub fn tick(&mut self, now: u64, guests: &mut impl Guests<C>) -> bool {
        let Some(running) = &mut self.running else { return false };
        if let Some(change) = running.changes.get(running.rollout.step())
            && let Some(order) = running.rollout.next(now, guests.seen(change))
            && let Err(why) = guests.obey(order, change)
        {
            running.rollout.fail(why);
        }
        if running.rollout.is_over() {
            self.finish(now);
            return true;
        }
        false
    }

    fn finish(&mut self, now: u64) {
        let Some(Running { rollout, changes, before, goes_back }) = self.running.take() else { return };
        let (done, rest) = changes.split_at_checked(rollout.step()).unwrap_or((&changes, &[]));
        let names = |changes: &[C]| match changes {
            [] => "nothing".into(),
            changes => sentence(Joined(changes.iter())),
        };
        let what = if goes_back { "the way back" } else { "apply" };
        let text = match (rollout.failure(), rest) {
            (Some(why), [failed, rest @ ..]) => {
                self.state = ApplyState::Failed;
                let (done, rest) = (names(done), names(rest));
                write(format_args!("{what} has failed: {failed}: {why}\ndone: {done}\nnot done: {rest}\n"))
            }
            _ => {
                self.state = ApplyState::Done;
                write(format_args!("{what} is done: {}\n", names(done)))
            }
        };
        let mut text = text.unwrap_or_default();
        if let Some((before, wait)) = before {
            self.unconfirmed = Some(Unconfirmed { before, until: now.saturating_add(wait) });
            if self.state == ApplyState::Done {
                self.state = ApplyState::Unconfirmed;
            }
            text = write(format_args!("{text}it goes back in {} s without `confirm`\n", wait / 1000)).unwrap_or(text);
        }
        self.text = text;
    }

    /// Takes what comes back, if no `confirm` came in time. Begin the way there by [`Apply::go_back`].
    pub fn due(&mut self, now: u64) -> Option<S> {
        self.unconfirmed.take_if(|unconfirmed| now >= unconfirmed.until).map(|unconfirmed| unconfirmed.before)
    }

    /// Begins the way back. It stays then.
    pub fn go_back(&mut self, changes: Vec<C>, deeds: Vec<Deed>, patience: u64) {
        self.run(changes, deeds, None, patience, true);
    }

    /// How far it is.
    #[must_use]
    pub const fn state(&self) -> ApplyState {
        self.state
    }

    /// What became of the last one, in lines for a person.
    #[must_use]
    pub fn text(&self) -> &str {
        if self.text.is_empty() { "nothing was applied yet\n" } else { &self.text }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::vec;

    use super::*;

    /// Guests by number, which do at once what they are told. The one with the number 9 does not start.
    struct Obedient(RefCell<Vec<(u32, Seen)>>);

    impl Guests<u32> for Obedient {
        fn seen(&self, change: &u32) -> Seen {
            self.0.borrow().iter().find(|(guest, _)| guest == change).map_or(Seen::Down, |(_, seen)| *seen)
        }

        fn obey(&mut self, order: Order, change: &u32) -> Result<(), Text> {
            let seen = match order {
                Order::Stop => Seen::Down,
                Order::Give => return Ok(()),
                Order::Start if *change == 9 => return Err("it has no kernel".into()),
                Order::Start => Seen::Up,
            };
            let guests = self.0.get_mut();
            guests.retain(|(guest, _)| guest != change);
            guests.push((*change, seen));
            Ok(())
        }
    }

    fn guests() -> Obedient {
        Obedient(RefCell::new(vec![(1, Seen::Up), (2, Seen::Up)]))
    }

    /// Ticks until it is over, once a millisecond. Returns the time.
    fn finish(apply: &mut Apply<u32, &'static str>, guests: &mut Obedient, from: u64) -> u64 {
        (from..from + 100).find(|now| apply.tick(*now, guests)).unwrap()
    }

    fn begun(changes: &[u32], deeds: &[Deed], confirm: Option<u64>) -> Apply<u32, &'static str> {
        let mut apply = Apply::default();
        assert_eq!((apply.state(), apply.text()), (ApplyState::Nothing, "nothing was applied yet\n"));
        let before = confirm.map(|wait| ("before", wait));
        apply.begin(changes.to_vec(), deeds.to_vec(), before, 1000, "it runs\n".into()).unwrap();
        assert_eq!((apply.state(), apply.text(), apply.is_idle()), (ApplyState::Running, "it runs\n", false));
        apply
    }

    #[test]
    fn ten_files_a_second_are_read_at_most() {
        let mut apply = Apply::<u32, ()>::default();
        let read = (0..1000).filter(|now| apply.read(*now).is_ok()).count();
        assert_eq!(read, 10);
        assert!(apply.read(u64::MAX).is_ok());
    }

    #[test]
    fn it_is_carried_out_and_stays() {
        let (mut apply, mut guests) = (begun(&[1, 3], &[Deed::Remove, Deed::Start], None), guests());
        assert_eq!(apply.changes().collect::<Vec<_>>(), [&1, &3]);
        let refused = apply.begin(vec![], vec![], None, 0, String::new()).unwrap_err();
        assert!(refused.contains("still being carried out"));
        let now = finish(&mut apply, &mut guests, 0);
        assert_eq!((apply.state(), apply.text(), apply.is_idle()), (ApplyState::Done, "apply is done: 1, 3\n", true));
        assert_eq!((guests.seen(&1), guests.seen(&3)), (Seen::Down, Seen::Up));
        assert_eq!((apply.due(now + 1_000_000), apply.tick(now + 1, &mut guests)), (None, false));
        assert!(apply.confirm().unwrap_err().contains("nothing waits"));
        assert_eq!(apply.changes().count(), 0);
    }

    #[test]
    fn without_confirm_it_goes_back_when_the_time_is_over() {
        let (mut apply, mut guests) = (begun(&[1], &[Deed::Remove], Some(5000)), guests());
        let now = finish(&mut apply, &mut guests, 0);
        assert_eq!(apply.state(), ApplyState::Unconfirmed);
        assert_eq!(apply.text(), "apply is done: 1\nit goes back in 5 s without `confirm`\n");
        assert!(apply.check_idle().unwrap_err().contains("waits for `confirm`"));
        assert_eq!(apply.before().collect::<Vec<_>>(), [&"before"]);
        assert_eq!((apply.due(now + 4999), apply.due(now + 5000)), (None, Some("before")));
        apply.go_back(vec![1], vec![Deed::Start], 1000);
        assert_eq!((apply.state(), apply.before().count()), (ApplyState::Running, 0));
        assert!(apply.confirm().is_err(), "the way back needs none");
        finish(&mut apply, &mut guests, now + 5000);
        assert_eq!((apply.state(), apply.text()), (ApplyState::Done, "the way back is done: 1\n"));
        assert!(apply.is_idle() && guests.seen(&1) == Seen::Up);
    }

    #[test]
    fn with_confirm_it_stays_also_if_that_comes_early() {
        for early in [true, false] {
            let (mut apply, mut guests) = (begun(&[1], &[Deed::Remove], Some(5000)), guests());
            if early {
                apply.confirm().unwrap();
            }
            let now = finish(&mut apply, &mut guests, 0);
            if !early {
                apply.confirm().unwrap();
            }
            assert_eq!((apply.state(), apply.is_idle(), apply.due(now + 5000)), (ApplyState::Done, true, None));
            assert!(apply.confirm().is_err());
        }
    }

    #[test]
    fn a_failure_says_what_was_done_and_goes_back_too() {
        let deeds = [Deed::Remove, Deed::Start, Deed::Change];
        let (mut apply, mut guests) = (begun(&[1, 9, 2], &deeds, Some(1000)), guests());
        let now = finish(&mut apply, &mut guests, 0);
        let expected =
            "apply has failed: 9: it has no kernel\ndone: 1\nnot done: 2\nit goes back in 1 s without `confirm`\n";
        assert_eq!((apply.state(), apply.text()), (ApplyState::Failed, expected));
        assert_eq!(apply.due(now + 1000), Some("before"));
        let mut apply = begun(&[9], &[Deed::Start], None);
        finish(&mut apply, &mut guests, 0);
        assert_eq!(apply.text(), "apply has failed: 9: it has no kernel\ndone: nothing\nnot done: nothing\n");
        assert!(apply.is_idle());
        // Keeping what is there after a failure does not make it a success.
        let mut apply = begun(&[9], &[Deed::Start], Some(1000));
        finish(&mut apply, &mut guests, 0);
        apply.confirm().unwrap();
        assert_eq!((apply.state(), apply.is_idle()), (ApplyState::Failed, true));
    }
}
