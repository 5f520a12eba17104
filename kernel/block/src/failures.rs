//! When a disk's failed requests are reported: once when they begin, not once a request.

use core::sync::atomic::{AtomicU64, Ordering};

/// Microseconds without a failed request after which the next one is reported again.
const CALM: u64 = 60_000_000;

/// Watches a count of failed requests. One core calls it.
#[derive(Debug, Default)]
pub struct Failures {
    /// The count at the last look.
    known: AtomicU64,
    /// When it last grew, in microseconds, at least 1. 0: never.
    grew: AtomicU64,
}

impl Failures {
    /// Takes the count as it is now. `now` is in microseconds. Returns whether to report it.
    pub fn look(&self, count: u64, now: u64) -> bool {
        if self.known.swap(count, Ordering::Relaxed) == count {
            return false;
        }
        let before = self.grew.swap(now.max(1), Ordering::Relaxed);
        before == 0 || now.saturating_sub(before) >= CALM
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM, Failures};

    #[test]
    fn a_disk_that_goes_on_failing_is_reported_once() {
        let failures = Failures::default();
        assert!(!failures.look(0, 0));
        assert!(failures.look(1, 0));
        assert!((1..1000).all(|n| !failures.look(1 + n, n * (CALM / 2))), "there was no calm in between");
        let quiet = 1000 * (CALM / 2);
        assert!(!failures.look(1000, quiet + CALM), "nothing new");
        assert!(failures.look(1001, quiet + CALM));
    }
}
