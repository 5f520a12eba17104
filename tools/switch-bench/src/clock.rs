//! The time-stamp counter, and percentiles.

#![allow(unsafe_code, reason = "reads the time-stamp counter")]

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Now, in ticks.
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86_64 CPU has it, and Linux lets processes read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ticks in a millisecond, measured against the system's clock at the first call.
pub fn millisecond() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (begin, ticks) = (Instant::now(), now());
        thread::sleep(Duration::from_millis(50));
        let (took, ticks) = (begin.elapsed(), now().wrapping_sub(ticks));
        (ticks * 1_000_000 / (took.as_nanos() as u64).max(1)).max(1)
    })
}

/// Returns the value that `percent` of all values do not exceed. Sorts the values. Without values: NaN.
pub fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() * percent / 100).min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let mut values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(
            (percentile(&mut values, 50), percentile(&mut values, 95), percentile(&mut values, 100)),
            (50.0, 95.0, 99.0)
        );
        assert!(percentile(&mut [], 50).is_nan());
    }
}
