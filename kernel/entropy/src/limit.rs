//! The rate of random bytes of one guest: a bucket of time that the clock refills. So a guest cannot use the engine's time
//! for slow instructions such as RDSEED.

/// The rate of each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Ticks of the engine's clock for each byte. 0: no limit.
    pub ticks_per_byte: u64,
    /// Bytes that a guest may get at once after a pause. At least a request's, or nothing would ever be given.
    pub burst: u64,
}

/// What one guest may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Ticks that it has saved.
    level: u64,
    /// When `level` was computed.
    at: u64,
}

impl Bucket {
    /// A full bucket.
    pub(crate) const fn full(limit: &Limit, now: u64) -> Self {
        Self { level: limit.burst.saturating_mul(limit.ticks_per_byte), at: now }
    }

    /// Takes `bytes` if the guest may have them at `now`. Otherwise takes nothing and returns false.
    pub(crate) fn take(&mut self, limit: &Limit, bytes: usize, now: u64) -> bool {
        let most = limit.burst.saturating_mul(limit.ticks_per_byte);
        self.level = self.level.saturating_add(now.saturating_sub(self.at)).min(most);
        self.at = self.at.max(now);
        let price = (bytes as u64).saturating_mul(limit.ticks_per_byte);
        let rest = self.level.checked_sub(price);
        self.level = rest.unwrap_or(self.level);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Limit};

    const LIMIT: Limit = Limit { ticks_per_byte: 10, burst: 128 };

    #[test]
    fn a_burst_is_given_at_once_and_then_the_rate_exactly() {
        let mut bucket = Bucket::full(&LIMIT, 5);
        assert!(bucket.take(&LIMIT, 64, 5) && bucket.take(&LIMIT, 64, 5) && !bucket.take(&LIMIT, 1, 5));
        // Asked at every tick for ten seconds' worth: neither more nor less than the rate.
        let given = (6..=64_005).filter(|&now| bucket.take(&LIMIT, 64, now)).count();
        assert_eq!(given, 100);
    }

    #[test]
    fn a_pause_saves_no_more_than_a_burst_and_a_clock_that_stands_still_gives_nothing() {
        let mut bucket = Bucket::full(&LIMIT, 0);
        let later = u64::MAX / 2;
        assert!(bucket.take(&LIMIT, 128, later));
        assert!(!bucket.take(&LIMIT, 1, later) && !bucket.take(&LIMIT, 1, 0));
        assert!(bucket.take(&LIMIT, 1, later + 10));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let limit = Limit { ticks_per_byte: 0, burst: 0 };
        let mut bucket = Bucket::full(&limit, 0);
        assert!((0..1000).all(|_| bucket.take(&limit, 1 << 20, 0)));
    }
}
