//! A token bucket: so many units a second on average, and so many at once after a silence. It fills continuously by the
//! engine's clock and without rounding, so that the rate is exact however often it is looked at.
//!
//! The level is counted in units times ticks a second: a tick adds the rate, a unit costs as much as a second has
//! ticks. The greatest level is below 2^62, so that sums of two fit.

use core::sync::atomic::{AtomicU64, Ordering};

/// No level, and no refill before it is cut to one, is above this.
const MOST: u64 = 1 << 62;

/// What a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units a second, not 0.
    pub units: u64,
    /// Units at once after a silence; at least one is always allowed.
    pub burst: u64,
}

/// A bucket in use. One core writes it; the others may look.
#[derive(Debug)]
pub struct Bucket {
    /// Added each tick: units a second.
    rate: u64,
    /// What a unit costs: ticks a second.
    cost: u64,
    /// The full level.
    full: u64,
    /// Ticks after which it is full whatever it was.
    fills_in: u64,
    level: AtomicU64,
    /// The time up to which it has been refilled.
    at: AtomicU64,
}

impl Bucket {
    /// A full one, for a clock with `hz` ticks a second. Values out of range are cut: the rate to 1 to 2^56 units a second,
    /// the burst to what is counted exactly, 2^62 divided by `hz`.
    #[must_use]
    pub fn new(rate: Rate, hz: u64) -> Self {
        let cost = hz.clamp(1, MOST);
        let full = rate.burst.clamp(1, MOST / cost) * cost;
        let rate = rate.units.clamp(1, 1 << 56);
        Self {
            rate,
            cost,
            full,
            fills_in: full.div_ceil(rate),
            level: AtomicU64::new(full),
            // The first look finds it full, whenever that is.
            at: AtomicU64::new(0),
        }
    }

    /// Takes `units` at the time `now`. False: there are not as many, and none is taken.
    #[inline]
    pub fn take(&self, units: u64, now: u64) -> bool {
        let elapsed = now.wrapping_sub(self.at.load(Ordering::Relaxed));
        let mut level = self.level.load(Ordering::Relaxed);
        if elapsed >= 1 << 63 {
            // A clock that went back a little: nothing is added until it has caught up.
        } else {
            level = if elapsed >= self.fills_in {
                self.full
            } else {
                // Below `full` plus one tick's worth, because `elapsed` is below `fills_in`.
                (level + elapsed * self.rate).min(self.full)
            };
            self.at.store(now, Ordering::Relaxed);
        }
        let left = units.checked_mul(self.cost).and_then(|price| level.checked_sub(price));
        self.level.store(left.unwrap_or(level), Ordering::Relaxed);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Bucket, MOST, Rate};

    /// A clock of 3 GHz.
    const HZ: u64 = 3_000_000_000;

    fn bucket(units: u64, burst: u64) -> Bucket {
        Bucket::new(Rate { units, burst }, HZ)
    }

    #[test]
    fn after_the_burst_comes_the_rate_to_the_tick() {
        let b = bucket(1000, 10);
        assert_eq!((0..100).filter(|_| b.take(1, 5)).count(), 10);
        // One unit is 3,000,000 ticks.
        assert!(!b.take(1, 5 + 2_999_999));
        assert!(b.take(1, 5 + 3_000_000));
        assert!(!b.take(1, 5 + 3_000_001));
    }

    #[test]
    fn a_rate_is_exact_however_small_the_steps_are() {
        // 7 units a second of a clock whose second they do not divide, looked at at every tick and at every eleventh.
        let b = Bucket::new(Rate { units: 7, burst: 2 }, 1_000_003);
        assert_eq!((0..=1_000_003).filter(|&now| b.take(1, now)).count(), 2 + 7);
        let b = Bucket::new(Rate { units: 7, burst: 2 }, 1_000_003);
        assert_eq!((0..1_000_003).step_by(11).filter(|&now| b.take(1, now)).count(), 2 + 6);
        assert!(b.take(1, 1_000_003) && !b.take(1, 1_000_003), "the seventh is due at the last tick");
    }

    #[test]
    fn a_long_silence_gives_the_burst_and_no_more() {
        for silence in [HZ, 1 << 40, (1 << 63) - 1] {
            let b = bucket(10_000_000_000, 64 << 10);
            assert!(b.take(64 << 10, 1));
            assert!(!b.take(1, 1));
            assert!(b.take(64 << 10, 1 + silence), "{silence}");
            assert!(!b.take(1, 1 + silence), "{silence}");
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing_and_takes_nothing() {
        let b = bucket(1000, 1);
        assert!(b.take(1, HZ));
        assert!(!b.take(1, HZ - 1_000_000));
        assert!(!b.take(1, HZ + 2_999_999));
        assert!(b.take(1, HZ + 3_000_000));
    }

    #[test]
    fn the_greatest_numbers_do_not_overflow() {
        for (units, burst, hz) in
            [(u64::MAX, u64::MAX, u64::MAX), (u64::MAX, u64::MAX, 1), (0, 0, 0), (1, u64::MAX, HZ)]
        {
            let b = Bucket::new(Rate { units, burst }, hz);
            for now in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX, 5] {
                b.take(u64::MAX, now);
                b.take(1, now);
            }
        }
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate_and_never_less_while_it_is_asked_for(
            units in 1u64..1 << 40,
            burst in 1u64..1 << 30,
            steps in proptest::collection::vec((0u64..1 << 34, 1u64..1 << 20), 1..200),
        ) {
            let b = bucket(units, burst);
            // The model counts in whole numbers of 128 bits.
            let (hz, full) = (u128::from(HZ), u128::from(burst.min(MOST / HZ)) * u128::from(HZ));
            let (mut level, mut now) = (full, 0u64);
            for (ticks, wanted) in steps {
                now += ticks;
                level = (level + u128::from(ticks) * u128::from(units)).min(full);
                let price = u128::from(wanted) * hz;
                let fits = price <= level;
                prop_assert_eq!(b.take(wanted, now), fits);
                if fits {
                    level -= price;
                }
            }
        }
    }
}
