//! Distributions of durations: log-linear, in fixed memory.
//!
//! Values below 8 have a bucket each. Above, each power of two is divided into 8 buckets of the same width, so a bucket is
//! at most an eighth of its values wide. Values from 15/16 of 2^40 on are in the last bucket, which has no end. A histogram
//! with other parameters has other parts of a power of two, and another limit.
//!
//! One core records in a [`Histogram`], with plain loads and stores. Another core adds histograms up in [`Totals`] at any time.
//! A histogram belongs to a period. The reader begins a period by choosing a new number. The writer clears the histogram
//! when it first records in that period. So nobody clears what another core writes, and the reader takes a histogram of
//! another period as empty.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Buckets for each power of two, as a power of two, unless a histogram has others.
const EIGHTHS: u32 = 3;
/// Number of buckets for values below `2^limit`, with `2^bits` buckets for each power of two. `limit` is larger than `bits`.
pub const fn buckets(bits: u32, limit: u32) -> usize {
    (limit.saturating_sub(bits).saturating_add(1) as usize) << bits
}

/// Number of buckets, unless a histogram has others.
pub const BUCKETS: usize = buckets(EIGHTHS, 40);

/// A histogram. One core writes it, any core reads it. All zero is a good first state. A power of two has `2^BITS` buckets.
/// There are `N` of them: as many as [`buckets`] says.
#[derive(Debug)]
pub struct Histogram<const BITS: u32 = EIGHTHS, const N: usize = BUCKETS> {
    /// The period of what is in it. 0: nothing was recorded.
    period: AtomicU64,
    counts: [AtomicU64; N],
    sum: AtomicU64,
    most: AtomicU64,
}

impl<const BITS: u32, const N: usize> Default for Histogram<BITS, N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The bucket of a value, of `last + 1` buckets.
#[inline]
fn bucket(bits: u32, last: usize, value: u64) -> usize {
    // The position of the highest bit above the linear part; 0 for what is in it.
    let shift = (value | 1 << bits).ilog2().wrapping_sub(bits);
    // `value >> shift` is below `2^(bits + 1)`, so the sum fits.
    let bucket = (u64::from(shift) << bits).wrapping_add(value >> shift);
    (bucket as usize).min(last)
}

/// The largest value of a bucket.
fn end(bits: u32, bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> bits).saturating_sub(1);
    let first = bucket.wrapping_sub(shift << bits);
    (first.wrapping_add(1) << shift).wrapping_sub(1)
}

impl<const BITS: u32, const N: usize> Histogram<BITS, N> {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            period: AtomicU64::new(0),
            counts: [const { AtomicU64::new(0) }; N],
            sum: AtomicU64::new(0),
            most: AtomicU64::new(0),
        }
    }

    /// Counts a value in a period, which is not 0. Forgets what was recorded in another period. Only one core may call it: a
    /// load and a store are enough then.
    #[inline]
    pub fn record(&self, period: u64, value: u64) {
        self.record_many(period, value, 1);
    }

    /// Counts a value `times` times, as [`Histogram::record`] does once.
    #[inline]
    pub fn record_many(&self, period: u64, value: u64, times: u32) {
        if self.period.load(Relaxed) == period {
            self.add(value, times);
        } else {
            self.begin(period, value, times);
        }
    }

    #[inline(always)]
    fn add(&self, value: u64, times: u32) {
        let add = |word: &AtomicU64, value: u64| word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
        if let Some(count) = self.counts.get(bucket(BITS, N.saturating_sub(1), value)) {
            add(count, times.into());
        }
        add(&self.sum, value.wrapping_mul(times.into()));
        if value > self.most.load(Relaxed) {
            self.most.store(value, Relaxed);
        }
    }

    /// Begins a period with its first value. It counts the value itself, so that a caller has no registers to save for it.
    #[cold]
    #[inline(never)]
    fn begin(&self, period: u64, value: u64, times: u32) {
        self.counts.iter().chain([&self.sum, &self.most]).for_each(|word| word.store(0, Relaxed));
        // Whoever sees the new period sees nothing of the old one: this pairs with the load in `Totals::add`.
        self.period.store(period, Release);
        self.add(value, times);
    }
}

/// The sums of several histograms at one moment.
#[derive(Clone, Debug)]
pub struct Totals<const BITS: u32 = EIGHTHS, const N: usize = BUCKETS> {
    counts: [u64; N],
    sum: u64,
    most: u64,
}

impl<const BITS: u32, const N: usize> Default for Totals<BITS, N> {
    fn default() -> Self {
        Self { counts: [0; N], sum: 0, most: 0 }
    }
}

impl<const BITS: u32, const N: usize> Totals<BITS, N> {
    /// Adds what a histogram has of a period. While its core records, the sum may have a value that the counts do not have yet.
    pub fn add(&mut self, histogram: &Histogram<BITS, N>, period: u64) {
        if histogram.period.load(Acquire) != period {
            return;
        }
        for (to, from) in self.counts.iter_mut().zip(&histogram.counts) {
            *to = to.wrapping_add(from.load(Relaxed));
        }
        self.sum = self.sum.wrapping_add(histogram.sum.load(Relaxed));
        self.most = self.most.max(histogram.most.load(Relaxed));
    }

    /// Returns how many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| count.wrapping_add(sum))
    }

    /// Returns the sum of all values.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the largest value.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.most
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
            seen = seen.wrapping_add(*count);
            if seen >= wanted {
                let last = index.wrapping_add(1) == N;
                return if last { self.most } else { end(BITS, index).min(self.most) };
            }
        }
        self.most
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u32 = 40;
    const PARTS: u64 = 1 << EIGHTHS;
    const BITS: u32 = EIGHTHS;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for (bits, limit) in [(3, 40), (2, 36), (2, 15), (0, 8)] {
            let count = buckets(bits, limit);
            let mut next = 0;
            for index in 0..count {
                let of = |value| bucket(bits, count - 1, value);
                assert_eq!((of(next), of(end(bits, index))), (index, index), "bucket {index} of {count}");
                next = end(bits, index) + 1;
            }
            assert_eq!(next, 1 << limit);
            assert_eq!([next, u64::MAX].map(|value| bucket(bits, count - 1, value)), [count - 1; 2]);
        }
    }

    #[test]
    fn a_value_that_many_have_counts_as_often() {
        let histogram = Histogram::<2, { buckets(2, 36) }>::new();
        histogram.record_many(1, 100, 30);
        histogram.record(1, 7000);
        let mut totals = Totals::default();
        totals.add(&histogram, 1);
        // The bucket of 100 is 96 to 111, a quarter of 64 wide.
        assert_eq!((totals.count(), totals.sum(), totals.most(), totals.percentile(900)), (31, 10_000, 7000, 111));
    }

    fn totals(histograms: &[&Histogram], period: u64) -> Totals {
        let mut totals: Totals = Totals::default();
        histograms.iter().for_each(|histogram| totals.add(histogram, period));
        totals
    }

    #[test]
    fn percentiles_of_a_known_distribution() {
        let histogram = <Histogram>::new();
        assert_eq!(totals(&[&histogram], 1).percentile(500), 0);
        (1..=1000).for_each(|value| histogram.record(1, value));
        let all = totals(&[&histogram], 1);
        assert_eq!((all.count(), all.sum(), all.most()), (1000, 500_500, 1000));
        // The bucket of 500 is 480 to 511, that of 990 is 960 to 1023.
        assert_eq!([500, 990, 1000].map(|p| all.percentile(p)), [511, 1000, 1000]);
    }

    #[test]
    fn a_new_period_begins_at_zero_for_the_reader_at_once_and_for_the_writer_when_it_records() {
        let (busy, quiet) = (<Histogram>::new(), <Histogram>::new());
        busy.record(1, 1 << 20);
        quiet.record(1, 7);
        assert_eq!(totals(&[&busy, &quiet], 1).count(), 2);
        assert_eq!(totals(&[&busy, &quiet], 2).count(), 0, "nothing of it is shown");
        busy.record(2, 3);
        let second = totals(&[&busy, &quiet], 2);
        assert_eq!((second.count(), second.sum(), second.most(), second.percentile(990)), (1, 3, 3, 3));
        assert_eq!(totals(&[&busy, &quiet], 1).count(), 1, "the one that recorded nothing still has the old one");
    }

    #[test]
    fn a_reader_on_another_core_sees_counts_that_only_grow_and_at_the_end_all_of_them() {
        const VALUES: u64 = if cfg!(miri) { 200 } else { 200_000 };
        let histogram = <Histogram>::new();
        std::thread::scope(|s| {
            let writer = s.spawn(|| (0..VALUES).for_each(|value| histogram.record(1, value % 5000)));
            let mut before = 0;
            while !writer.is_finished() {
                let now = totals(&[&histogram], 1).count();
                assert!((before..=VALUES).contains(&now), "{now} after {before}");
                before = now;
            }
        });
        assert_eq!(totals(&[&histogram], 1).count(), VALUES);
    }

    proptest! {
        #[test]
        fn a_percentile_is_at_most_an_eighth_too_large(
            mut values in proptest::collection::vec(0_u64..1 << 50, 1..200),
            per_mille in 0_u32..=1000,
        ) {
            // They are of two cores.
            let histograms = [<Histogram>::new(), <Histogram>::new()];
            values.iter().zip(histograms.iter().cycle()).for_each(|(&value, histogram)| histogram.record(1, value));
            values.sort_unstable();
            let rank = (values.len() * per_mille as usize).div_ceil(1000).max(1);
            let totals = totals(&histograms.each_ref(), 1);
            let (exact, found) = (values[rank - 1], totals.percentile(per_mille));
            prop_assert_eq!((totals.count(), totals.sum()), (values.len() as u64, values.iter().sum::<u64>()));
            prop_assert!(found >= exact, "{} for {}", found, exact);
            // The last bucket has no end.
            let last = (1 << LIMIT) - (1 << (LIMIT - 1 - BITS));
            prop_assert!(exact >= last || found - exact <= exact / PARTS, "{} for {}", found, exact);
        }
    }
}
