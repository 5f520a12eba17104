//! Converts TSC ticks to time.

/// A TSC's frequency, and the wall clock if the trace has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Ticks a millisecond, not 0.
    khz: u64,
    /// Whether the trace named the frequency.
    known: bool,
    /// Wall clock in ns since 1970 (UTC) when the TSC was 0. None: the trace does not say.
    wall_at_zero: Option<u64>,
}

impl Clock {
    /// With this many ticks a millisecond. 0: unknown, and a tick counts as a nanosecond. `wall_at_zero`: ns since 1970.
    #[must_use]
    pub fn new(khz: u64, wall_at_zero: Option<u64>) -> Self {
        Self { khz: if khz == 0 { 1_000_000 } else { khz }, known: khz != 0, wall_at_zero }
    }

    /// Whether the trace named the frequency.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Ticks a millisecond.
    #[must_use]
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// Wall clock in ns since 1970 (UTC) when the TSC was 0.
    #[must_use]
    pub fn wall_at_zero(&self) -> Option<u64> {
        self.wall_at_zero
    }

    /// Nanoseconds of so many ticks, rounded down. `u64::MAX` if there are more.
    #[must_use]
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let wide = u128::from(ticks).saturating_mul(1_000_000).checked_div(u128::from(self.khz)).unwrap_or_default();
        u64::try_from(wide).unwrap_or(u64::MAX)
    }

    /// Microseconds of so many ticks.
    #[must_use]
    pub fn microseconds(&self, ticks: f64) -> f64 {
        ticks * 1_000.0 / self.khz as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_become_time_at_the_frequency() {
        let clock = Clock::new(2_600_000, None);
        assert_eq!(clock.nanoseconds(2_600_000_000), 1_000_000_000);
        assert!((clock.microseconds(2_600.0) - 1.0).abs() < 1e-12);
        assert_eq!(Clock::new(1, None).nanoseconds(u64::MAX), u64::MAX, "more than fits");
    }

    #[test]
    fn an_unknown_frequency_counts_ticks() {
        let clock = Clock::new(0, None);
        assert!(!clock.is_known());
        assert_eq!(clock.nanoseconds(123), 123);
    }

    proptest! {
        #[test]
        fn time_never_goes_back(khz: u64, a: u64, b: u64) {
            let clock = Clock::new(khz, None);
            prop_assert!(clock.nanoseconds(a.min(b)) <= clock.nanoseconds(a.max(b)));
        }
    }
}
