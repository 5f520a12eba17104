//! Exponential backoff: when to shadow an IDT again after the guest has disturbed the shadow.
//!
//! The caller passes the time, in ticks of the TSC.

/// A wait that doubles with each disturbance that comes close after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    least: u64,
    wait: u64,
    /// When the last disturbance was.
    disturbed: u64,
}

/// The longest wait, as a multiple of the shortest: 1 s against 8 ms.
const MOST: u64 = 128;
/// A disturbance is close if it comes within this many waits after the last one. A close one makes the next wait
/// longer.
const CLOSE: u64 = 16;

impl Backoff {
    /// Makes a backoff for a TSC of `tsc_khz`. The shortest wait is 8 ms, the longest a second.
    #[must_use]
    pub fn new(tsc_khz: u64) -> Self {
        let least = tsc_khz.saturating_mul(8).max(1);
        Self { least, wait: 0, disturbed: 0 }
    }

    /// Notes a disturbance at `now`. Returns the time at which to try again.
    pub fn disturbed(&mut self, now: u64) -> u64 {
        let close = self.wait != 0 && now.wrapping_sub(self.disturbed) <= self.wait.saturating_mul(CLOSE);
        self.wait = if close { self.wait.saturating_mul(2).min(self.least.saturating_mul(MOST)) } else { self.least };
        self.disturbed = now;
        now.saturating_add(self.wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_disturbed_again_and_again_waits_for_longer_up_to_a_second() {
        let mut p = Backoff::new(1_000_000); // 1 GHz
        let mut now = 5_000_000_000;
        let waits: Vec<_> = (0..10)
            .map(|_| {
                let due = p.disturbed(now);
                let wait = due - now;
                now = due; // and at once again
                wait / 1_000_000
            })
            .collect();
        assert_eq!(waits, [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        // A guest that always disturbs its table costs at most one attempt a second.
        assert!(waits.iter().all(|&ms| ms <= 1024));
    }

    #[test]
    fn after_a_quiet_time_the_wait_is_short_again() {
        let mut p = Backoff::new(1_000_000);
        p.disturbed(0);
        let due = p.disturbed(1);
        assert_eq!(due, 1 + 16_000_000);
        let later = 1 + 16 * 16_000_000 + 1;
        assert_eq!(p.disturbed(later), later + 8_000_000);
    }

    #[test]
    fn the_first_disturbance_is_none_too_many_whatever_the_time() {
        assert_eq!(Backoff::new(1_000_000).disturbed(3), 3 + 8_000_000);
        let mut p = Backoff::new(u64::MAX);
        assert_eq!(p.disturbed(1), u64::MAX);
        assert_eq!(p.disturbed(2), u64::MAX, "and no arithmetic overflows");
    }
}
