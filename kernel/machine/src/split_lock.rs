//! Split and bus locks: what happens to a guest that makes one.
//!
//! A locked access that crosses a cache line, or to memory that is not write-back, locks the bus: all other cores wait
//! (SDM vol. 3A 10.1.2). A guest can do that all the time. Three things notice it, where the processor has them: #AC by
//! MSR_TEST_CTRL (SDM vol. 3A 10.1.2.3), bus-lock exiting of VT-x (vol. 3C 25.6.2, exit reason 74), and the bus lock
//! threshold of SVM (APM vol. 2 15.14.5). The back-ends report all three as [`Exit::SplitLock`](crate::vcpu::Exit), and
//! this file decides.

use crate::control_registers::AM;

/// How long, in microseconds, a guest may go on after a split lock before the next one is noticed.
const FREE_MICROS: u64 = 1000;
const RFLAGS_AC: u64 = 1 << 18;

/// What is done about a guest's split and bus locks: `split_lock` in `sidecore.toml`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitLocks {
    /// They are noticed. After each the guest goes on for a millisecond in which they are not.
    #[default]
    Slow,
    /// The guest ends at the first.
    Kill,
    /// They are not noticed.
    Allow,
}

/// What follows a split or bus lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest goes on. Its split and bus locks are not noticed until the host's TSC has this value.
    Free {
        /// Value of the host's TSC.
        until: u64,
    },
    /// The guest ends.
    End,
}

impl SplitLocks {
    /// Whether the processor is to notice them.
    #[must_use]
    pub const fn noticed(self) -> bool {
        !matches!(self, Self::Allow)
    }

    /// Returns what follows one. `now` is the host's TSC, which counts with `tsc_khz` kHz.
    #[must_use]
    pub const fn verdict(self, now: u64, tsc_khz: u64) -> Verdict {
        match self {
            Self::Slow => Verdict::Free { until: now.saturating_add(tsc_khz.saturating_mul(FREE_MICROS) / 1000) },
            Self::Kill => Verdict::End,
            // Only a thread of the same physical core can have switched this on, for another guest (`smt = "share"`).
            Self::Allow => Verdict::Free { until: u64::MAX },
        }
    }
}

/// Whether an #AC is one that the guest has asked for: alignment is checked at CPL 3 while CR0.AM and RFLAGS.AC are set
/// (SDM vol. 3A 6.15 "Alignment Check Exception"). Any other is a split lock. Here an access may be both, and then it is
/// the guest's own.
#[must_use]
pub const fn is_alignment_check(cpl: u8, cr0: u64, rflags: u64) -> bool {
    cpl == 3 && cr0 & AM != 0 && rflags & RFLAGS_AC != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_gives_a_millisecond_kill_ends_and_allow_never_notices() {
        assert_eq!(SplitLocks::default(), SplitLocks::Slow);
        assert_eq!(SplitLocks::Slow.verdict(5_000, 2_500_000), Verdict::Free { until: 2_505_000 });
        assert_eq!(SplitLocks::Slow.verdict(u64::MAX - 1, u64::MAX), Verdict::Free { until: u64::MAX });
        assert_eq!(SplitLocks::Kill.verdict(5_000, 2_500_000), Verdict::End);
        assert_eq!(SplitLocks::Allow.verdict(5_000, 2_500_000), Verdict::Free { until: u64::MAX });
        assert_eq!(
            [SplitLocks::Slow, SplitLocks::Kill, SplitLocks::Allow].map(SplitLocks::noticed),
            [true, true, false]
        );
    }

    #[test]
    fn only_user_code_that_asked_for_alignment_checks_has_one_of_its_own() {
        let (on, flag) = (0x8005_0033, 0x4_0202);
        assert!(is_alignment_check(3, on, flag));
        for (cpl, cr0, rflags) in [(0, on, flag), (1, on, flag), (2, on, flag), (3, on & !AM, flag), (3, on, 0x202)] {
            assert!(!is_alignment_check(cpl, cr0, rflags), "{cpl} {cr0:#x} {rflags:#x}");
        }
    }
}
