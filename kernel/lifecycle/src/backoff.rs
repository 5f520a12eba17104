//! How long a guest with `restart = "always"` waits before it starts again.

/// A life of at least this many milliseconds resets the wait to none.
const LONG_LIFE: u64 = 60_000;
/// Wait in milliseconds after the second short life. After the first there is none.
const FIRST: u64 = 1_000;
/// Longest wait in milliseconds.
const LONGEST: u64 = 64_000;

/// The wait before the next life. It doubles with each short life, so that a guest that can never run does not fill the
/// log and does not occupy the control core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The next wait in milliseconds.
    next: u64,
}

impl Backoff {
    /// Notes that the guest has ended by itself after `lived` milliseconds. Returns the milliseconds to wait before it
    /// starts again.
    pub(crate) fn ended(&mut self, lived: u64) -> u64 {
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
