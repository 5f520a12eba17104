//! A token bucket: an average rate, and a burst after silence. The engine's clock fills it continuously and without
//! rounding. So the rate is exact, however often the bucket is used.
//!
//! The level is the number of units times the clock's ticks per second. A tick adds the rate, in units per second. A
//! unit takes away the ticks of a second. A level is at most 2^62, so the sum of two levels fits into 64 bits.

use core::sync::atomic::{AtomicU64, Ordering};

/// Upper bound of a level, and of a refill before it is limited to the full level.
const MOST: u64 = 1 << 62;

/// The rate and the burst of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units per second, not 0.
    pub units: u64,
    /// Most units at once after silence, at least 1.
    pub burst: u64,
}

/// A bucket. One core writes it; others may read it.
#[derive(Debug)]
pub struct Bucket {
    /// Added per tick: units per second.
    rate: u64,
    /// Cost of a unit: ticks per second.
    cost: u64,
    /// The full level.
    full: u64,
    /// Ticks after which an empty bucket is full.
    fills_in: u64,
    level: AtomicU64,
    /// The time up to which it has been refilled.
    at: AtomicU64,
}

impl Bucket {
    /// Makes a full bucket for a clock with `hz` ticks per second. Values out of range are clamped. The rate is 1 to
    /// 2^56 units per second. The burst is 1 to 2^62 divided by `hz`, the largest that is counted exactly.
    #[must_use]
    pub fn new(rate: Rate, hz: u64) -> Self {
        let cost = hz.clamp(1, MOST);
        let full = rate.burst.clamp(1, MOST.checked_div(cost).unwrap_or(1)).saturating_mul(cost);
        let rate = rate.units.clamp(1, 1 << 56);
        Self {
            rate,
            cost,
            full,
            fills_in: full.div_ceil(rate),
            level: AtomicU64::new(full),
            // The bucket is full at its first use.
            at: AtomicU64::new(0),
        }
    }

    /// Takes `units` at the time `now`. If there are fewer, takes none and returns false.
    #[inline]
    pub fn take(&self, units: u64, now: u64) -> bool {
        let elapsed = now.wrapping_sub(self.at.load(Ordering::Relaxed));
        let mut level = self.level.load(Ordering::Relaxed);
        if elapsed >= 1 << 63 {
            // The clock went back a little: nothing is added until it has caught up.
        } else {
            level = if elapsed >= self.fills_in {
                self.full
            } else {
                // At most `full` plus the rate of one tick, because `elapsed` is below `fills_in`.
                elapsed.saturating_mul(self.rate).saturating_add(level).min(self.full)
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
        // The ticks of this clock's second are not a multiple of 7. The bucket is tried at every tick, and at every
        // eleventh tick.
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
