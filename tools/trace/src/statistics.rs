//! Statistics of times: what `perf kvm stat` shows of the exits for one reason, and two percentiles.

/// Times that were collected, in TSC ticks. They are kept one by one, so that percentiles are exact: 4 bytes a record of
/// 32 bytes that was read.
#[derive(Clone, Debug, Default)]
pub struct Times {
    ticks: Vec<u32>,
}

/// What a report shows of some times, in TSC ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many there were.
    pub samples: u64,
    /// Their sum.
    pub total: u64,
    /// The shortest.
    pub min: u32,
    /// The longest. `u32::MAX`: the record's field was full, and it took that long or longer.
    pub max: u32,
    /// The average.
    pub average: f64,
    /// The standard error of the average, in percent of the average: `( +- ... )` of perf. 0 for one sample.
    pub deviation: f64,
    /// The time that half of them did not exceed (nearest rank).
    pub p50: u32,
    /// The time that 99 % of them did not exceed (nearest rank).
    pub p99: u32,
}

impl Times {
    /// Adds one, in ticks.
    pub fn add(&mut self, ticks: u32) {
        self.ticks.push(ticks);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ticks.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ticks.is_empty()
    }

    /// Sums them up. All zero if there is none.
    #[must_use]
    pub fn summary(mut self) -> Summary {
        self.ticks.sort_unstable();
        let (Some(&min), Some(&max)) = (self.ticks.first(), self.ticks.last()) else { return Summary::default() };
        let samples = self.ticks.len() as u64;
        let total = self.ticks.iter().fold(0_u64, |sum, &ticks| sum.saturating_add(u64::from(ticks)));
        let average = total as f64 / samples as f64;
        Summary {
            samples,
            total,
            min,
            max,
            average,
            deviation: relative_error(&self.ticks, average),
            p50: self.rank(50),
            p99: self.rank(99),
        }
    }

    /// The smallest time that `percent` of the sorted times do not exceed.
    fn rank(&self, percent: usize) -> u32 {
        let place = self.ticks.len().saturating_mul(percent).div_ceil(100).saturating_sub(1);
        self.ticks.get(place).copied().unwrap_or_default()
    }
}

/// The standard error of the average, in percent of it.
fn relative_error(ticks: &[u32], average: f64) -> f64 {
    if ticks.len() < 2 || average == 0.0 {
        return 0.0;
    }
    let count = ticks.len() as f64;
    let squares: f64 = ticks.iter().map(|&ticks| (f64::from(ticks) - average).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt() / average * 100.0
}

/// A part of a whole in percent. 0 of nothing is 0.
#[must_use]
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(ticks: &[u32]) -> Summary {
        Times { ticks: ticks.to_vec() }.summary()
    }

    #[test]
    fn figures_are_those_that_were_computed_by_hand() {
        let summary = of(&[4, 2, 8, 2]);
        assert_eq!((summary.samples, summary.total, summary.min, summary.max), (4, 16, 2, 8));
        assert_eq!((summary.p50, summary.p99), (2, 8));
        // Squares of the distances from 4: 0 + 4 + 16 + 4 = 24; 24 / 3 / 4 = 2; its root is 35.36 % of 4.
        assert!((summary.average - 4.0).abs() < 1e-9 && (summary.deviation - 35.355_339).abs() < 1e-3);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred: Vec<u32> = (1..=100).rev().collect();
        assert_eq!((of(&hundred).p50, of(&hundred).p99), (50, 99));
        let more: Vec<u32> = (1..=101).collect();
        assert_eq!((of(&more).p50, of(&more).p99), (51, 100));
    }

    #[test]
    fn nothing_and_one_have_no_deviation() {
        assert_eq!(of(&[]), Summary::default());
        let one = of(&[7]);
        assert_eq!((one.samples, one.p50, one.p99, one.deviation), (1, 7, 7, 0.0));
        assert_eq!(of(&[0, 0]).deviation, 0.0, "no division by an average of 0");
    }

    proptest! {
        #[test]
        fn the_order_of_figures_holds_for_any_times(ticks in proptest::collection::vec(any::<u32>(), 1..300)) {
            let s = of(&ticks);
            prop_assert!(s.min <= s.p50 && s.p50 <= s.p99 && s.p99 <= s.max);
            prop_assert!(f64::from(s.min) <= s.average + 0.5 && s.average <= f64::from(s.max) + 0.5);
            prop_assert_eq!(s.total, ticks.iter().map(|&t| u64::from(t)).sum::<u64>());
            prop_assert!(s.deviation.is_finite() && s.deviation >= 0.0);
            let below = ticks.iter().filter(|&&t| t <= s.p99).count();
            prop_assert!(below * 100 >= ticks.len() * 99);
        }
    }
}
