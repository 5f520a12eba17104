//! How long a guest with `restart = "always"` waits before it starts again.

/// Ends within this many milliseconds count: ten minutes. It is much longer than the longest wait, so a guest that ends
/// again and again always waits, however long it lived in between.
const WINDOW: u64 = 600_000;
/// Ends that are remembered. This many bring the longest wait.
const REMEMBERED: usize = 8;
/// Wait in milliseconds after the second end in a window. After the first there is none.
const FIRST: u64 = 1_000;

/// The wait before the next life. It doubles with each end in the last ten minutes, from 1 s to 64 s, so that a guest that can
/// never run does not fill the log and does not occupy the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// Times of the latest ends in milliseconds, the latest first. `None`: there was none.
    ends: [Option<u64>; REMEMBERED],
}

impl Backoff {
    /// Notes that the guest has ended by itself at the time `now`. Returns the milliseconds to wait before it starts again.
    pub(crate) fn ended(&mut self, now: u64) -> u64 {
        self.ends.rotate_right(1);
        self.ends[0] = Some(now);
        let recent = self.ends.iter().flatten().filter(|&&end| now.saturating_sub(end) < WINDOW).count();
        match recent {
            0 | 1 => 0,
            more => FIRST << (more - 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_in_the_window_doubles_the_wait() {
        let mut b = Backoff::default();
        let waits: Vec<u64> = (0..10).map(|n| b.ended(5_000 + n)).collect();
        assert_eq!(waits, [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000, 64_000]);
    }

    #[test]
    fn a_guest_that_lives_a_minute_each_time_waits_as_well() {
        // This was the way round a rule that looked at how long a life was.
        let mut b = Backoff::default();
        let (mut now, mut starts) = (0, 0);
        while now < 3_600_000 {
            now += 60_000;
            now += b.ended(now);
            starts += 1;
        }
        assert!(starts <= 50, "{starts} starts in an hour; without a wait there are 60");
        assert!(b.ended(now + 60_000) >= 8_000);
    }

    #[test]
    fn ends_before_the_window_are_forgotten() {
        let mut b = Backoff::default();
        assert_eq!((b.ended(0), b.ended(0)), (0, 1_000));
        assert_eq!(b.ended(WINDOW - 1), 2_000);
        assert_eq!(b.ended(WINDOW), 1_000, "the two at 0 do not count any more");
        assert_eq!(b.ended(2 * WINDOW), 0);
    }
}
