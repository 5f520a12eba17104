//! When a boot counts as one that has come to run.
//!
//! The control loop alone is not enough: a configuration may be the reason that something fails when its guests start, or soon
//! after. If that ended the count, such a machine would be reset for ever and never try the other configuration.

/// Milliseconds without a failure after the guests have started.
pub const LASTS: u64 = 30_000;

/// A boot that is in its control loop and has not come to run yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settling {
    /// When no guest was starting for the first time, in milliseconds.
    since: Option<u64>,
}

impl Settling {
    /// A boot whose control loop begins.
    #[must_use]
    pub const fn new() -> Self {
        Self { since: None }
    }

    /// Looks whether the boot has come to run. `now`: milliseconds from any time on; `starting`: a guest's memory is being filled.
    pub fn has_settled(&mut self, now: u64, starting: bool) -> bool {
        if self.since.is_none() && !starting {
            self.since = Some(now);
        }
        self.since.is_some_and(|since| now.saturating_sub(since) >= LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_begins_when_the_guests_have_started() {
        let mut settling = Settling::new();
        assert!(!settling.has_settled(0, true));
        assert!(!settling.has_settled(10 * LASTS, true), "a guest that takes long to start");
        assert!(!settling.has_settled(10 * LASTS + 1, false));
        assert!(!settling.has_settled(11 * LASTS, false));
        assert!(settling.has_settled(11 * LASTS + 1, false));
    }

    #[test]
    fn a_guest_that_starts_again_does_not_hold_it_up() {
        let mut settling = Settling::new();
        for now in 0..LASTS {
            assert!(!settling.has_settled(now, now % 2 == 1));
        }
        assert!(settling.has_settled(LASTS, true));
    }

    #[test]
    fn without_guests_it_is_the_time_in_the_loop() {
        let mut settling = Settling::new();
        assert!(!settling.has_settled(7, false));
        assert!(settling.has_settled(7 + LASTS, false));
    }
}
