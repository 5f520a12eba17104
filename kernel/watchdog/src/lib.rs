//! The watchdog: finds a core that makes no progress in the hypervisor, by what another core sees of it.
//!
//! ```text
//!  watcher, each look:   Pace ── time that counts ──┐
//!                        Seen (a number that changes with progress) ──▶ Watched::look ──▶ Verdict
//! ```
//!
//! **No false alarms.** A core of an emulator, or of a virtual machine, may be kept from running for seconds. All cores are then
//! often kept together. So time counts only if the watcher itself has run regularly: between two looks, one period at most
//! counts ([`Pace`]). A watcher that was away for ten seconds counts one period of them. What remains is a single core that
//! is kept away while the watcher runs. Against that only a long limit helps.
//!
//! This crate only decides. It reads no clock and no other core: `kernel/src/watchdog.rs` does that, and carries out.

#![no_std]

/// What a watcher sees of another core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It halts, or its guest runs: it owes no progress.
    Resting,
    /// It runs the hypervisor's code. The number changes when it makes progress.
    Working(u64),
}

/// What follows from a look at a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// It has made no progress for as long as the limit. Ask it where it is. This comes once.
    Stuck,
    /// It was asked, has not answered, and has made no progress for as long as the limit once more. This comes once.
    Silent,
    /// It was stuck and makes progress again. This comes once.
    Recovered,
}

/// How far it has come with a core that makes no progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Moving,
    Asked,
    /// It has answered, or there is no hope that it will.
    Known,
}

/// A core that is watched, as its watcher remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The number at the last progress. `None` if it rested.
    last: Option<u64>,
    /// Ticks without progress that count.
    without: u64,
    stage: Stage,
}

impl Watched {
    /// Looks at the core. `ticks` is the time since the last look that counts ([`Pace::due`]), `limit` the ticks without
    /// progress that are too many. A limit of 0 finds nothing.
    pub fn look(&mut self, seen: Seen, ticks: u64, limit: u64) -> Verdict {
        let number = match seen {
            Seen::Resting => None,
            Seen::Working(number) => Some(number),
        };
        if number.is_none() || number != self.last || limit == 0 {
            let was_stuck = self.stage != Stage::Moving;
            *self = Self { last: number, ..Self::default() };
            return if was_stuck { Verdict::Recovered } else { Verdict::Fine };
        }
        self.without = self.without.saturating_add(ticks);
        if self.without < limit {
            return Verdict::Fine;
        }
        match self.stage {
            Stage::Moving => {
                (self.stage, self.without) = (Stage::Asked, 0);
                Verdict::Stuck
            }
            Stage::Asked => {
                self.stage = Stage::Known;
                Verdict::Silent
            }
            Stage::Known => Verdict::Fine,
        }
    }

    /// Notes that the core has answered. [`Verdict::Silent`] does not come then.
    pub fn answered(&mut self) {
        if self.stage == Stage::Asked {
            self.stage = Stage::Known;
        }
    }
}

/// The pace of a watcher's looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    period: u64,
    last: Option<u64>,
}

impl Pace {
    /// A look every `period` ticks.
    #[must_use]
    pub const fn new(period: u64) -> Self {
        Self { period, last: None }
    }

    /// Returns the time at which the next look is due.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add(self.period))
    }

    /// Returns `None` if no look is due at time `now`. Otherwise returns the ticks that count since the last look: a period,
    /// however long ago that was. For the first look that is 0.
    pub fn due(&mut self, now: u64) -> Option<u64> {
        if now < self.next() {
            return None;
        }
        let first = self.last.replace(now).is_none();
        Some(if first { 0 } else { self.period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = 50;

    #[test]
    fn a_core_without_progress_is_stuck_once_then_silent_once() {
        let mut core = Watched::default();
        assert_eq!(core.look(Seen::Working(7), 10, LIMIT), Verdict::Fine, "the first look is progress");
        let verdicts: [_; 12] = core::array::from_fn(|_| core.look(Seen::Working(7), 10, LIMIT));
        let mut expected = [Verdict::Fine; 12];
        (expected[4], expected[9]) = (Verdict::Stuck, Verdict::Silent);
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn one_that_has_answered_is_not_silent_and_one_that_goes_on_has_recovered() {
        for seen in [Seen::Working(8), Seen::Resting] {
            let mut core = Watched::default();
            core.look(Seen::Working(7), 0, LIMIT);
            assert_eq!(core.look(Seen::Working(7), LIMIT, LIMIT), Verdict::Stuck);
            core.answered();
            assert_eq!(core.look(Seen::Working(7), 10 * LIMIT, LIMIT), Verdict::Fine);
            assert_eq!(core.look(seen, 10, LIMIT), Verdict::Recovered);
            assert_eq!(core.look(seen, 10, LIMIT), Verdict::Fine);
        }
    }

    #[test]
    fn a_core_that_rests_owes_nothing_and_a_limit_of_0_finds_nothing() {
        let mut core = Watched::default();
        for _ in 0..1000 {
            assert_eq!(core.look(Seen::Resting, LIMIT, LIMIT), Verdict::Fine);
        }
        for _ in 0..1000 {
            assert_eq!(core.look(Seen::Working(7), LIMIT, 0), Verdict::Fine);
        }
    }

    #[test]
    fn of_the_time_in_which_the_watcher_was_away_one_period_counts() {
        let mut pace = Pace::new(10);
        assert_eq!([pace.due(1000), pace.due(1009), pace.due(1010)], [Some(0), None, Some(10)]);
        assert_eq!(pace.next(), 1020);
        assert_eq!([pace.due(900_000), pace.due(900_009), pace.due(900_010)], [Some(10), None, Some(10)]);
    }

    proptest! {
        /// The watcher and the core are kept from running for any times. The core makes progress whenever it runs.
        #[test]
        fn nobody_is_stuck_who_makes_progress_within_fewer_looks_than_the_limit(
            steps in proptest::collection::vec((1u64..1_000_000, 0u64..4), 0..400)
        ) {
            let (mut pace, mut core, mut now, mut number, mut idle) = (Pace::new(10), Watched::default(), 0, 0, 0);
            for (away, progress) in steps {
                now += away;
                // Nothing is owed for fewer looks than the limit has periods.
                idle = if progress == 0 { idle + 1 } else { 0 };
                if progress != 0 || idle >= LIMIT / 10 {
                    (number, idle) = (number + 1, 0);
                }
                if let Some(ticks) = pace.due(now) {
                    prop_assert_eq!(core.look(Seen::Working(number), ticks, LIMIT), Verdict::Fine);
                }
            }
        }

        /// A core that makes none is found within the limit and one look, whatever happened before.
        #[test]
        fn who_makes_no_progress_is_found(before in 0u64..1000, start in 0u64..1_000_000) {
            let (mut pace, mut core, mut now) = (Pace::new(10), Watched::default(), start);
            for number in 0..before {
                if let Some(ticks) = pace.due(now) {
                    core.look(Seen::Working(number), ticks, LIMIT);
                }
                now += 3;
            }
            let begun = now;
            let mut found = None;
            while found.is_none() && now < begun + 1000 {
                now += 1;
                if let Some(ticks) = pace.due(now) && core.look(Seen::Working(u64::MAX), ticks, LIMIT) == Verdict::Stuck {
                    found = Some(now - begun);
                }
            }
            prop_assert!(found.is_some_and(|after| (LIMIT..=LIMIT + 20).contains(&after)), "{:?}", found);
        }
    }
}
