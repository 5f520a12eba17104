//! When a guest that ended by itself is started again.

/// A life at least this long, in milliseconds, ends the waiting for the next one.
const LONG_LIFE: u64 = 60_000;
/// First wait, in milliseconds, after a guest has ended twice in short order.
const FIRST: u64 = 1_000;
/// Longest wait, in milliseconds.
const LONGEST: u64 = 64_000;

/// How long a guest with `restart = "always"` waits for its next life: not at all after its first end or after a long
/// life, otherwise twice as long each time, so that a guest that can never run does not fill the log and the control core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    /// The next wait in milliseconds.
    next: u64,
}

impl Backoff {
    /// The guest has ended by itself after `lived` milliseconds. Milliseconds to wait before it is started again.
    pub fn ended(&mut self, lived: u64) -> u64 {
        if lived >= LONG_LIFE {
            self.next = 0;
        }
        let wait = self.next;
        self.next = (wait * 2).clamp(FIRST, LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lives_wait_longer_each_time_and_a_long_one_ends_that() {
        let mut b = Backoff::default();
        let waits: Vec<u64> = (0..9).map(|_| b.ended(100)).collect();
        assert_eq!(waits, [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]);
        assert_eq!(b.ended(60_000), 0);
        assert_eq!(b.ended(59_999), 1_000);
    }
}
