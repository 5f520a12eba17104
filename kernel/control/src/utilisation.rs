//! How busy an engine is: the busy part of its time in the last second and in the last minute.
//!
//! An engine counts the cycles of its busy and of its idle turns anyway. The control core reads these two counters once a second
//! and keeps the readings of a minute. So this is always on, and costs an engine nothing but that reading.
//!
//! The time is that of the turns that ended between two readings:
//!
//! - An engine with a core of its own is in a turn all the time, so it is the whole time.
//! - An engine that shares the control core has the time between the control core's own work. 100 % means that each of its turns
//!   found work, as for the others.
//! - An engine that ends no turn between two readings is neither busy nor idle. Then there is no value, because 0 would be wrong.

use heapless::Deque;

/// Readings that are kept: the ends of 60 seconds.
const READINGS: usize = 61;

/// The counters of an engine at one time, in TSC cycles.
#[derive(Clone, Copy, Debug)]
struct Reading {
    busy: u64,
    idle: u64,
}

impl Reading {
    /// Thousandths of the time since `earlier` that were busy. `None` if no turn has ended since. The counters may wrap between
    /// the two.
    fn busy_since(self, earlier: Self) -> Option<u64> {
        busy_permille(self.busy.wrapping_sub(earlier.busy), self.idle.wrapping_sub(earlier.idle))
    }
}

/// The busy part of a time of `busy` and `idle` cycles, in thousandths. `None` if there are none.
pub(crate) fn busy_permille(busy: u64, idle: u64) -> Option<u64> {
    let (busy, idle) = (u128::from(busy), u128::from(idle));
    let permille = busy.saturating_mul(1000).checked_div(busy.saturating_add(idle))?;
    u64::try_from(permille).ok()
}

/// How busy one engine is.
#[derive(Debug)]
pub struct Utilisation {
    /// TSC ticks of a second.
    second: u64,
    /// When the last reading was taken, in TSC ticks. It means nothing while there are no readings.
    read_at: u64,
    /// The readings, the oldest first.
    readings: Deque<Reading, READINGS>,
}

impl Utilisation {
    /// Makes one without readings. `second`: TSC ticks of a second.
    #[must_use]
    pub const fn new(second: u64) -> Self {
        Self { second, read_at: 0, readings: Deque::new() }
    }

    /// Takes a reading if the last one is a second old or more. Call it in each tick. `now`: the TSC. `counters`: gives the
    /// cycles of the engine's busy and of its idle turns; it is only called for a reading.
    pub fn tick(&mut self, now: u64, counters: impl FnOnce() -> (u64, u64)) {
        if !self.readings.is_empty() && now.wrapping_sub(self.read_at) < self.second {
            return;
        }
        let (busy, idle) = counters();
        if self.readings.is_full() {
            self.readings.pop_front();
        }
        // There is room.
        let _ = self.readings.push_back(Reading { busy, idle });
        self.read_at = now;
    }

    /// The busy part of the time between the last two readings, in thousandths. They are a second apart, or more if the control
    /// core was late. `None` if there are no two readings yet, or no turn ended between them.
    #[must_use]
    pub fn second(&self) -> Option<u64> {
        let mut newest = self.readings.iter().rev();
        let (last, before) = (newest.next()?, newest.next()?);
        last.busy_since(*before)
    }

    /// The same between the newest reading and the 60th before it: a minute, or more if the control core was late. In the first
    /// minute: since the first reading.
    #[must_use]
    pub fn minute(&self) -> Option<u64> {
        self.readings.back()?.busy_since(*self.readings.front()?)
    }
}

#[cfg(test)]
mod tests {
    use super::Utilisation;
    use proptest::prelude::*;

    const SECOND: u64 = 2_000_000_000;

    /// An engine whose clock and counters the test moves.
    struct Engine {
        utilisation: Utilisation,
        now: u64,
        busy: u64,
        idle: u64,
    }

    impl Engine {
        fn new(busy: u64, idle: u64) -> Self {
            Self { utilisation: Utilisation::new(SECOND), now: u64::MAX - 3 * SECOND, busy, idle }
        }

        /// So many ticks of the TSC pass, in which its turns take so many cycles.
        fn pass(&mut self, ticks: u64, busy: u64, idle: u64) -> [Option<u64>; 2] {
            self.now = self.now.wrapping_add(ticks);
            (self.busy, self.idle) = (self.busy.wrapping_add(busy), self.idle.wrapping_add(idle));
            self.tick()
        }

        fn tick(&mut self) -> [Option<u64>; 2] {
            self.utilisation.tick(self.now, || (self.busy, self.idle));
            [self.utilisation.second(), self.utilisation.minute()]
        }
    }

    #[test]
    fn there_is_no_value_in_the_first_second_whatever_was_counted_before() {
        let mut engine = Engine::new(900 * SECOND, 0);
        assert_eq!([engine.utilisation.second(), engine.utilisation.minute()], [None, None]);
        assert_eq!(engine.tick(), [None, None]);
        assert_eq!(engine.pass(SECOND - 1, SECOND / 4, SECOND * 3 / 4 - 1), [None, None]);
        assert_eq!(engine.pass(1, 0, 1), [Some(250), Some(250)]);
    }

    #[test]
    fn the_counters_are_read_once_a_second_however_often_it_is_asked() {
        let mut utilisation = Utilisation::new(SECOND);
        let mut reads = 0;
        // A thousand ticks a second, for ten seconds.
        for tick in 0..10_000 {
            utilisation.tick(tick * (SECOND / 1000), || {
                reads += 1;
                (0, 0)
            });
        }
        assert_eq!(reads, 10);
    }

    #[test]
    fn a_minute_is_the_last_60_seconds_and_in_the_first_minute_the_time_so_far() {
        let mut engine = Engine::new(0, 0);
        engine.tick();
        assert_eq!(engine.pass(SECOND, SECOND, 0), [Some(1000), Some(1000)]);
        assert_eq!(engine.pass(SECOND, 0, SECOND), [Some(0), Some(500)]);
        for _ in 2..60 {
            engine.pass(SECOND, 0, SECOND);
        }
        assert_eq!([engine.utilisation.second(), engine.utilisation.minute()], [Some(0), Some(1000 / 60)]);
        // The busy second is now more than a minute ago.
        assert_eq!(engine.pass(SECOND, 0, SECOND), [Some(0), Some(0)]);
    }

    #[test]
    fn counters_and_the_clock_may_wrap() {
        // The clock wraps in the fourth second.
        let mut engine = Engine::new(u64::MAX - SECOND, u64::MAX - 3 * SECOND);
        engine.tick();
        for _ in 0..20 {
            assert_eq!(engine.pass(SECOND, SECOND / 5, SECOND / 5 * 4), [Some(200), Some(200)]);
        }
        assert!(engine.busy < 4 * SECOND && engine.idle < 16 * SECOND && engine.now < 20 * SECOND);
        assert_eq!(engine.pass(SECOND, u64::MAX, 0)[0], Some(1000));
        assert_eq!(engine.pass(SECOND, u64::MAX, u64::MAX)[0], Some(500));
    }

    #[test]
    fn an_engine_that_shares_the_control_core_is_measured_by_the_time_of_its_turns() {
        let mut engine = Engine::new(0, 0);
        engine.tick();
        // The control core needs nine tenths of the time for itself.
        assert_eq!(engine.pass(SECOND, SECOND / 20, SECOND / 20), [Some(500), Some(500)]);
        assert_eq!(engine.pass(SECOND, SECOND / 10, 0)[0], Some(1000), "each turn found work");
        // It was so busy that it was late by three seconds.
        assert_eq!(engine.pass(4 * SECOND, SECOND, SECOND * 3)[0], Some(250));
    }

    #[test]
    fn an_engine_that_ends_no_turn_is_neither_busy_nor_idle() {
        let mut engine = Engine::new(0, 0);
        engine.tick();
        engine.pass(SECOND, 0, SECOND);
        assert_eq!(engine.pass(SECOND, 0, 0), [None, Some(0)]);
        assert_eq!(engine.pass(SECOND, 0, 0), [None, Some(0)]);
        // The turn has ended. All of its time counts now.
        assert_eq!(engine.pass(SECOND, 3 * SECOND, 0), [Some(1000), Some(750)]);
        // After a minute without a turn nothing is known.
        for _ in 0..60 {
            engine.pass(SECOND, 0, 0);
        }
        assert_eq!([engine.utilisation.second(), engine.utilisation.minute()], [None, None]);
    }

    proptest! {
        #[test]
        fn the_minute_lies_between_its_least_and_its_largest_second(
            start: (u64, u64),
            seconds in prop::collection::vec((0..=SECOND, 0..=SECOND), 1..200),
        ) {
            let mut engine = Engine::new(start.0, start.1);
            engine.tick();
            let mut shares = Vec::new();
            for (busy, idle) in seconds {
                let [second, minute] = engine.pass(SECOND, busy, idle);
                prop_assert_eq!(second, (busy * 1000).checked_div(busy + idle));
                shares.push(second);
                let last = || shares.iter().rev().take(60).flatten().copied();
                prop_assert!(last().min() <= minute && minute <= last().max(), "{:?} {:?}", minute, shares);
            }
        }
    }
}
