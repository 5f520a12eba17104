//! Carries out changes of guests one after the other, as a state machine without side effects.
//!
//! Each tick the kernel says how the guest of the present step is, and gets at most one thing to do. The first step that fails ends
//! it: the steps before are done, and those behind it are not begun.

use alloc::vec::Vec;

use control::Text;

/// What is done with a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It is stopped, and gets its new values, with which it cannot start.
    Remove,
    /// It gets its new values while it runs.
    Change,
    /// It is stopped, gets its new values, and starts. If it is down it stays down.
    Restart,
    /// It is down. It gets its new values, and starts.
    Start,
    /// It is down, and gets its new values.
    Keep,
}

/// What the kernel is to do for the present step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Press its power button; after the usual time it is killed.
    Stop,
    /// Give it its new values.
    Give,
    /// Start it.
    Start,
}

/// How a guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It neither runs nor waits for its next life.
    Down,
    /// It runs.
    Up,
    /// It is on its way up or down.
    Between,
}

/// Where the present step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was done.
    Begin,
    /// It was asked to stop.
    Stopping,
    /// It has its new values. Whether it starts now.
    Given { starts: bool },
    /// It was started.
    Starting,
}

/// The steps, and how far they are.
#[derive(Debug)]
pub struct Rollout {
    deeds: Vec<Deed>,
    /// The present step. As many as there are deeds when all are done.
    step: usize,
    phase: Phase,
    /// When the guest was asked to stop or to start, in milliseconds.
    since: u64,
    /// Most milliseconds for a guest to stop, and to start.
    patience: u64,
    failed: Option<Text>,
}

impl Rollout {
    /// Begins. `patience`: most milliseconds for a guest to stop, and to start.
    #[must_use]
    pub const fn new(deeds: Vec<Deed>, patience: u64) -> Self {
        Self { deeds, step: 0, phase: Phase::Begin, since: 0, patience, failed: None }
    }

    /// The number of the present step. As many as there are steps when all are done.
    #[must_use]
    pub const fn step(&self) -> usize {
        self.step
    }

    /// Whether nothing more is done: all steps are done, or one has failed.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.step >= self.deeds.len() || self.failed.is_some()
    }

    /// Why the present step has failed.
    #[must_use]
    pub const fn failure(&self) -> Option<&Text> {
        self.failed.as_ref()
    }

    /// What is to be done now. `seen`: how the guest of the present step is; `now`: milliseconds that never decrease.
    pub fn next(&mut self, now: u64, seen: Seen) -> Option<Order> {
        let deed = *self.deeds.get(self.step).filter(|_| self.failed.is_none())?;
        match (self.phase, seen) {
            (Phase::Begin, Seen::Down) if matches!(deed, Deed::Remove | Deed::Restart) => self.give(false),
            (Phase::Begin, _) => match deed {
                Deed::Change | Deed::Keep => self.give(false),
                Deed::Start => self.give(true),
                Deed::Remove | Deed::Restart => {
                    self.begin(now, Phase::Stopping);
                    Some(Order::Stop)
                }
            },
            (Phase::Stopping, Seen::Down) => self.give(deed == Deed::Restart),
            (Phase::Stopping, _) => self.wait(now, "it does not stop"),
            (Phase::Given { starts: true }, _) => {
                self.begin(now, Phase::Starting);
                Some(Order::Start)
            }
            (Phase::Given { starts: false }, _) | (Phase::Starting, Seen::Up) => {
                self.step = self.step.saturating_add(1);
                self.phase = Phase::Begin;
                None
            }
            (Phase::Starting, Seen::Down) => {
                self.fail("it has not started; its event says why".into());
                None
            }
            (Phase::Starting, Seen::Between) => self.wait(now, "it does not start"),
        }
    }

    /// Notes that the last order could not be carried out.
    pub fn fail(&mut self, why: Text) {
        self.failed.get_or_insert(why);
    }

    fn give(&mut self, starts: bool) -> Option<Order> {
        self.phase = Phase::Given { starts };
        Some(Order::Give)
    }

    const fn begin(&mut self, now: u64, phase: Phase) {
        self.since = now;
        self.phase = phase;
    }

    fn wait(&mut self, now: u64, why: &'static str) -> Option<Order> {
        if now.saturating_sub(self.since) > self.patience {
            self.fail(why.into());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    const PATIENCE: u64 = 1000;

    fn rollout(deeds: &[Deed]) -> Rollout {
        Rollout::new(deeds.to_vec(), PATIENCE)
    }

    /// What is ordered when the guest is seen so, one look a millisecond.
    fn orders(rollout: &mut Rollout, seen: &[Seen]) -> Vec<Option<Order>> {
        (0..).zip(seen).map(|(now, seen)| rollout.next(now, *seen)).collect()
    }

    #[test]
    fn a_guest_is_stopped_before_its_place_is_given_away() {
        let mut it = rollout(&[Deed::Remove]);
        let seen = [Seen::Up, Seen::Up, Seen::Between, Seen::Down, Seen::Down];
        assert_eq!(orders(&mut it, &seen), [Some(Order::Stop), None, None, Some(Order::Give), None]);
        assert!(it.is_over() && it.failure().is_none());
    }

    #[test]
    fn a_guest_restarts_with_its_new_values_and_one_that_is_down_stays_down() {
        let mut it = rollout(&[Deed::Restart]);
        let seen = [Seen::Up, Seen::Between, Seen::Down, Seen::Down, Seen::Between, Seen::Up];
        let expected = [Some(Order::Stop), None, Some(Order::Give), Some(Order::Start), None, None];
        assert_eq!(orders(&mut it, &seen), expected);
        assert!(it.is_over() && it.failure().is_none());
        let mut it = rollout(&[Deed::Restart]);
        assert_eq!(orders(&mut it, &[Seen::Down; 3]), [Some(Order::Give), None, None]);
        assert!(it.is_over() && it.failure().is_none());
    }

    #[test]
    fn steps_come_one_after_the_other() {
        let mut it = rollout(&[Deed::Change, Deed::Keep, Deed::Start]);
        let seen = [Seen::Up, Seen::Up, Seen::Down, Seen::Down, Seen::Down, Seen::Down, Seen::Between];
        let expected = [Some(Order::Give), None, Some(Order::Give), None, Some(Order::Give), Some(Order::Start), None];
        assert_eq!(orders(&mut it, &seen), expected);
        assert_eq!((it.step(), it.is_over()), (2, false));
        assert_eq!((it.next(9, Seen::Up), it.step(), it.is_over()), (None, 3, true));
    }

    #[test]
    fn a_step_that_fails_ends_it() {
        for (deed, seen, words) in [
            (Deed::Start, [Seen::Down; 3], "it has not started"),
            (Deed::Start, [Seen::Down, Seen::Down, Seen::Between], "it does not start"),
            (Deed::Remove, [Seen::Up; 3], "it does not stop"),
        ] {
            let mut it = rollout(&[deed, Deed::Change]);
            orders(&mut it, &seen);
            it.next(PATIENCE + 9, Seen::Between);
            assert_eq!(it.failure().map(|why| why.contains(words)), Some(true), "{deed:?}: {:?}", it.failure());
            assert_eq!((it.next(9999, Seen::Down), it.step(), it.is_over()), (None, 0, true));
        }
        let mut it = rollout(&[Deed::Start]);
        it.next(0, Seen::Down);
        it.fail("no memory".into());
        it.fail("another".into());
        assert_eq!(it.next(1, Seen::Down), None);
        assert_eq!(it.failure().map(|why| &**why), Some("no memory"));
    }

    proptest! {
        /// Guests that take any time, or end when they like: values are given to a guest that is down, once for each step, and the end
        /// comes within the time of all steps.
        #[test]
        fn it_ends_and_gives_values_to_guests_that_are_down(
            deeds in proptest::collection::vec(0_usize..5, 0..5),
            delays in proptest::collection::vec(0_u64..1500, 10),
            ends in proptest::collection::vec(0_u64..4000, 5),
        ) {
            let deeds: Vec<_> = deeds
                .into_iter()
                .map(|deed| [Deed::Remove, Deed::Change, Deed::Restart, Deed::Start, Deed::Keep][deed])
                .collect();
            let mut it = rollout(&deeds);
            // For each guest: how it is, and when it is so how it will be.
            let is_up = |deed: &Deed| !matches!(deed, Deed::Start | Deed::Keep);
            let mut guests: Vec<(Seen, Option<(u64, Seen)>)> =
                deeds.iter().map(|deed| (if is_up(deed) { Seen::Up } else { Seen::Down }, None)).collect();
            let mut given = vec![0; deeds.len()];
            let mut delays = delays.into_iter().cycle();
            let mut now = 0;
            while !it.is_over() {
                now += 1;
                prop_assert!(now < 2 * (PATIENCE + 5) * (deeds.len() as u64 + 1));
                for (number, (seen, next)) in guests.iter_mut().enumerate() {
                    if let Some((at, then)) = *next && now >= at {
                        (*seen, *next) = (then, None);
                    }
                    if ends[number] == now && *seen == Seen::Up {
                        *seen = Seen::Down;
                    }
                }
                let step = it.step();
                let (seen, next) = &mut guests[step];
                match it.next(now, *seen) {
                    None => {}
                    Some(Order::Give) => {
                        prop_assert!(*seen == Seen::Down || deeds[step] == Deed::Change);
                        given[step] += 1;
                    }
                    Some(Order::Stop) => {
                        *seen = Seen::Between;
                        *next = Some((now + delays.next().unwrap(), Seen::Down));
                    }
                    Some(Order::Start) => {
                        prop_assert!(given[step] == 1 && *seen == Seen::Down);
                        *seen = Seen::Between;
                        *next = Some((now + delays.next().unwrap(), Seen::Up));
                    }
                }
            }
            let done = it.step();
            prop_assert_eq!(done == deeds.len(), it.failure().is_none());
            prop_assert!(given[..done].iter().all(|times| *times == 1));
            prop_assert!(given.iter().skip(done + 1).all(|times| *times == 0), "those behind are not begun");
        }
    }
}
