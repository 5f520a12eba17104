//! Whether the TSCs of two cores agree.
//!
//! The cores take turns: one reads its TSC and shows it, then the other one looks at what was shown and reads its own. If that
//! is less than what was shown before, it is behind, at least by the difference. So there are no false alarms, and
//! differences below the time that a cache line takes between the cores are not seen.
//!
//! A TSC that is behind is put right by IA32_TSC_ADJUST (SDM vol. 3B 18.17.3), and looked at again.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How often a difference is looked for, and put right in between.
const MEETINGS: usize = 4;
/// Times that each core reads its TSC in a meeting.
const READS: usize = 16;

/// The two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one whose TSC is right by definition.
    First,
    /// The one that is compared with it.
    Second,
}

/// What a meeting has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No difference.
    Agree,
    /// The second core's TSC is behind, at least by so many ticks.
    Behind(u64),
    /// It is ahead, at least by so many ticks.
    Ahead(u64),
}

impl Found {
    /// What has to be added to the second core's IA32_TSC_ADJUST, modulo 2^64.
    #[must_use]
    pub const fn correction(self) -> u64 {
        match self {
            Self::Agree => 0,
            Self::Behind(by) => by,
            Self::Ahead(by) => 0_u64.wrapping_sub(by),
        }
    }
}

/// Where two cores meet once.
#[derive(Debug)]
struct Meeting {
    /// Readings so far. The first core reads when it is even.
    reads: AtomicUsize,
    /// The last one.
    shown: AtomicU64,
    /// By how much the first and the second core were behind at most.
    behind: [AtomicU64; 2],
}

impl Meeting {
    /// One that nobody has come to.
    const fn new() -> Self {
        let behind = [AtomicU64::new(0), AtomicU64::new(0)];
        Self { reads: AtomicUsize::new(0), shown: AtomicU64::new(0), behind }
    }

    /// Meets the other core, which calls this too. Both get the same answer.
    fn meet(&self, side: Side, tsc: impl Fn() -> u64, mut wait: impl FnMut() -> bool) -> Option<Found> {
        let mut wait_until = |reads: usize| {
            while self.reads.load(Acquire) < reads {
                if !wait() {
                    return None;
                }
            }
            Some(())
        };
        let [first, second] = &self.behind;
        let (own_first, behind) = match side {
            Side::First => (0, first),
            Side::Second => (1, second),
        };
        for read in (own_first..READS.saturating_mul(2)).step_by(2) {
            wait_until(read)?;
            let shown = self.shown.load(Relaxed);
            let own = tsc();
            behind.store(behind.load(Relaxed).max(shown.saturating_sub(own)), Relaxed);
            self.shown.store(own, Relaxed);
            self.reads.store(read.saturating_add(1), Release);
        }
        wait_until(READS.saturating_mul(2))?;
        // Each of the two was behind the other at some moment only if a TSC goes back. The larger difference counts.
        Some(match (first.load(Relaxed), second.load(Relaxed)) {
            (0, 0) => Found::Agree,
            (first, second) if second >= first => Found::Behind(second),
            (first, _) => Found::Ahead(first),
        })
    }
}

/// Where two cores meet until their TSCs agree.
#[derive(Debug)]
pub struct Meetings {
    meetings: [Meeting; MEETINGS],
    /// One of them has given up.
    given_up: AtomicBool,
}

/// What became of a core's TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was added to its IA32_TSC_ADJUST, modulo 2^64.
    pub added: u64,
    /// How far it is from the first core's in the end, at least; 0 if no difference is seen.
    pub left: u64,
}

impl Meetings {
    /// Meetings that nobody has come to.
    #[must_use]
    pub const fn new() -> Self {
        Self { meetings: [const { Meeting::new() }; MEETINGS], given_up: AtomicBool::new(false) }
    }

    /// Meets the other core until no difference is seen, or it cannot be put right. Both cores call it, and get the same.
    /// `tsc` reads this core's TSC, and not before what comes before it is done. `wait` is called while this core waits for the
    /// other one; if it returns false, both cores give up. `can_adjust`: both cores have IA32_TSC_ADJUST. `adjust` adds to the second
    /// core's; on the first core it does nothing. Returns `None` if one of them has given up.
    pub fn meet(
        &self,
        side: Side,
        can_adjust: bool,
        tsc: impl Fn() -> u64,
        mut wait: impl FnMut() -> bool,
        mut adjust: impl FnMut(u64),
    ) -> Option<Outcome> {
        let mut outcome = Outcome::default();
        let mut wait = || {
            if !wait() {
                self.given_up.store(true, Relaxed);
            }
            !self.given_up.load(Relaxed)
        };
        for (n, meeting) in (1..).zip(&self.meetings) {
            let found = meeting.meet(side, &tsc, &mut wait)?;
            outcome.left = match found {
                Found::Agree => 0,
                Found::Behind(by) | Found::Ahead(by) => by,
            };
            if found == Found::Agree || !can_adjust || n == MEETINGS {
                break;
            }
            adjust(found.correction());
            outcome.added = outcome.added.wrapping_add(found.correction());
        }
        Some(outcome)
    }
}

impl Default for Meetings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Has two threads meet whose clocks are nanoseconds, the second one's this far ahead.
    fn meet(ahead: i64, can_adjust: bool) -> Outcome {
        let (begin, meetings, offset) = (Instant::now(), Meetings::new(), AtomicI64::new(ahead));
        let now = || (1 << 50) + begin.elapsed().as_nanos() as u64;
        let wait = || {
            thread::yield_now();
            true
        };
        let second = || now().wrapping_add_signed(offset.load(Relaxed));
        let adjust = |by: u64| {
            offset.fetch_add(by as i64, Relaxed);
        };
        let outcomes = thread::scope(|scope| {
            let other = scope.spawn(|| meetings.meet(Side::Second, can_adjust, second, wait, adjust));
            [meetings.meet(Side::First, can_adjust, now, wait, |_| ()), other.join().unwrap()]
        });
        assert_eq!(outcomes[0], outcomes[1]);
        outcomes[0].unwrap()
    }

    #[test]
    fn clocks_that_agree_are_left_alone() {
        for _ in 0..20 {
            assert_eq!(meet(0, true), Outcome::default());
        }
    }

    #[test]
    fn a_clock_that_is_far_away_is_found_and_put_right() {
        for ahead in [-3_600_000_000_000, -10_000_000_000, 10_000_000_000, 3_600_000_000_000_i64] {
            // The difference is seen but for the time that a value takes from one thread to the other.
            let found = meet(ahead, false);
            let near = ahead.unsigned_abs();
            assert!((near - near / 2..=near).contains(&found.left) && found.added == 0, "{ahead}: {found:?}");
            let right = meet(ahead, true);
            assert!(right.left < near / 100, "{ahead}: {right:?}");
            let added = right.added as i64;
            assert!(added.signum() == -ahead.signum() && added.unsigned_abs().abs_diff(near) < near / 2, "{right:?}");
        }
    }

    #[test]
    fn a_core_that_waits_in_vain_gives_up() {
        let mut patience = 10;
        let wait = || {
            patience -= 1;
            patience > 0
        };
        let meetings = Meetings::new();
        assert_eq!(meetings.meet(Side::First, true, || 0, wait, |_| ()), None);
        assert_eq!(patience, 0);
        // Then the other one does not wait for it.
        assert_eq!(meetings.meet(Side::Second, true, || 0, || true, |_| ()), None);
    }

    #[test]
    fn a_correction_takes_the_difference_away() {
        assert_eq!(
            [Found::Agree, Found::Behind(5), Found::Ahead(5)].map(Found::correction),
            [0, 5, 5_u64.wrapping_neg()]
        );
    }
}
