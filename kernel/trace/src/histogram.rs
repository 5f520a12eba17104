//! A distribution of durations: log-linear, in fixed memory.
//!
//! Values below 8 have a bucket each. Above, each power of two is divided into 8 buckets of the same width, so a bucket is
//! at most an eighth of its values wide. Values from 2^40 on are in the last bucket. Nothing records in a histogram yet.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets for each power of two, as a power of two.
const BITS: u32 = 3;
/// Buckets for each power of two.
const PARTS: u64 = 1 << BITS;
/// Values are below 2 to this power, or in the last bucket.
const LIMIT: u32 = 40;
/// Number of buckets.
pub const BUCKETS: usize = ((LIMIT - BITS + 1) as usize) << BITS;

/// A histogram. One core writes it, any core reads it.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    most: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    let value = value.min((1 << LIMIT) - 1);
    // The position of the highest bit above the linear part.
    let shift = value.checked_ilog2().unwrap_or(0).saturating_sub(BITS);
    // `value >> shift` is below 16, so the sum fits.
    (u64::from(shift).wrapping_mul(PARTS)).wrapping_add(value >> shift) as usize
}

/// The largest value of a bucket.
fn end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let first = bucket.wrapping_sub(shift.wrapping_mul(PARTS));
    (first.wrapping_add(1) << shift).wrapping_sub(1)
}

impl Histogram {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    /// Counts a value. Only one core may call it: a load and a store are enough then.
    #[inline]
    pub fn record(&self, value: u64) {
        if let Some(count) = self.counts.get(bucket(value)) {
            count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
        }
        self.sum.store(self.sum.load(Relaxed).wrapping_add(value), Relaxed);
        if value > self.most.load(Relaxed) {
            self.most.store(value, Relaxed);
        }
    }

    /// Returns how many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| count.load(Relaxed).wrapping_add(sum))
    }

    /// Returns the sum of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// Returns the largest value.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Returns a value that `per_mille` of 1,000 values do not exceed: the largest value of the bucket in which it is, and
    /// not more than the largest value counted. 0 if nothing was counted.
    #[must_use]
    pub fn percentile(&self, per_mille: u32) -> u64 {
        let total = self.count();
        let share = u128::from(total).wrapping_mul(u128::from(per_mille.min(1000)));
        let wanted = u64::try_from(share.div_ceil(1000)).unwrap_or(total).max(1);
        let mut seen = 0_u64;
        for (index, count) in self.counts.iter().enumerate() {
            seen = seen.wrapping_add(count.load(Relaxed));
            if seen >= wanted {
                let last = index.wrapping_add(1) == BUCKETS;
                return if last { self.most() } else { end(index).min(self.most()) };
            }
        }
        self.most()
    }

    /// Resets all to zero. Call it only while nobody records.
    pub fn clear(&self) {
        self.counts.iter().chain([&self.sum, &self.most]).for_each(|word| word.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut next = 0;
        for index in 0..BUCKETS {
            assert_eq!((bucket(next), bucket(end(index))), (index, index), "bucket {index}");
            next = end(index) + 1;
        }
        assert_eq!(next, 1 << LIMIT);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_a_known_distribution() {
        let histogram = Histogram::new();
        assert_eq!(histogram.percentile(500), 0);
        (1..=1000).for_each(|value| histogram.record(value));
        assert_eq!((histogram.count(), histogram.sum(), histogram.most()), (1000, 500_500, 1000));
        // The bucket of 500 is 480 to 511, that of 990 is 960 to 1023.
        assert_eq!([500, 990, 1000].map(|p| histogram.percentile(p)), [511, 1000, 1000]);
        histogram.clear();
        assert_eq!((histogram.count(), histogram.sum(), histogram.most(), histogram.percentile(990)), (0, 0, 0, 0));
    }

    proptest! {
        #[test]
        fn a_percentile_is_at_most_an_eighth_too_large(
            mut values in proptest::collection::vec(0_u64..1 << 50, 1..200),
            per_mille in 0_u32..=1000,
        ) {
            let histogram = Histogram::new();
            values.iter().for_each(|&value| histogram.record(value));
            values.sort_unstable();
            let rank = (values.len() * per_mille as usize).div_ceil(1000).max(1);
            let (exact, found) = (values[rank - 1], histogram.percentile(per_mille));
            prop_assert!(found >= exact, "{} for {}", found, exact);
            prop_assert!(exact >= 1 << LIMIT || found - exact <= exact / PARTS, "{} for {}", found, exact);
        }
    }
}
