//! The local APIC's timer: one-shot, periodic, TSC-deadline (SDM vol. 3A 11.5.4). It does not count. It keeps its start
//! time, and computes everything else from that and the present time.

use core::num::NonZero;

/// The time at which a register is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// The host's time-stamp counter.
    pub tsc: u64,
    /// The guest's counter minus the host's, modulo 2^64.
    pub offset: u64,
}

/// Timer mode, bits 17 and 18 of the LVT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    OneShot,
    Periodic,
    TscDeadline,
}

#[derive(Clone, Debug)]
pub(super) struct Timer {
    /// Frequency before the divider, Hz.
    timer_hz: NonZero<u64>,
    /// Frequency of the host's TSC, Hz.
    tsc_hz: NonZero<u64>,
    mode: Mode,
    /// Initial count register.
    initial: u32,
    /// Divide configuration register.
    divide: u8,
    /// The host's TSC at which the count was at `initial`. `None` if the count does not run.
    started: Option<u64>,
    /// IA32_TSC_DEADLINE as the guest wrote it, and the corresponding host's TSC. `None` if it is not armed.
    tsc_deadline: Option<(u64, u64)>,
}

impl Timer {
    pub(super) fn new(timer_hz: u64, tsc_hz: u64) -> Self {
        Self {
            timer_hz: NonZero::new(timer_hz).unwrap_or(NonZero::<u64>::MIN),
            tsc_hz: NonZero::new(tsc_hz).unwrap_or(NonZero::<u64>::MIN),
            mode: Mode::OneShot,
            initial: 0,
            divide: 0,
            started: None,
            tsc_deadline: None,
        }
    }

    /// Returns the divisor: bits 0, 1 and 3 of the register. 0b111 means 1.
    fn divisor(&self) -> u128 {
        let code = self.divide & 3 | (self.divide >> 1) & 4;
        1 << (code.wrapping_add(1) & 7)
    }

    /// Returns the host's TSC ticks that `count` ticks of the timer take. Rounds up, so that a deadline never comes
    /// early.
    fn tsc_ticks(&self, count: u32) -> u64 {
        // At most 103 bits.
        let counted = u128::from(count).saturating_mul(self.divisor()).saturating_mul(u128::from(self.tsc_hz.get()));
        let ticks = counted.div_ceil(u128::from(self.timer_hz.get()));
        // Stay below 2^63, so that `elapsed` can tell past from future.
        ticks.min(u128::from(u64::MAX >> 1)) as u64
    }

    /// Returns the host's TSC ticks since the start, or 0 if the start is in the future.
    fn elapsed(started: u64, now: u64) -> u64 {
        (now.wrapping_sub(started) as i64).max(0) as u64
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        if (mode == Mode::TscDeadline) != (self.mode == Mode::TscDeadline) {
            self.started = None;
            self.tsc_deadline = None;
        }
        self.mode = mode;
    }

    pub(super) fn initial_count(&self) -> u32 {
        self.initial
    }

    /// Starts the count. 0 stops it. Does nothing in TSC-deadline mode.
    pub(super) fn set_initial_count(&mut self, count: u32, now: u64) {
        if self.mode != Mode::TscDeadline {
            self.initial = count;
            self.started = (count != 0).then_some(now);
        }
    }

    pub(super) fn current_count(&self, now: u64) -> u32 {
        let Some(started) = self.started else { return 0 };
        let elapsed = u128::from(Self::elapsed(started, now)).saturating_mul(u128::from(self.timer_hz.get()));
        let divisor = NonZero::new(self.divisor()).unwrap_or(NonZero::<u128>::MIN);
        let elapsed = elapsed / NonZero::<u128>::from(self.tsc_hz).saturating_mul(divisor);
        let initial = u128::from(self.initial);
        match self.mode {
            Mode::Periodic => initial.saturating_sub(elapsed.checked_rem(initial).unwrap_or(0)) as u32,
            _ => initial.saturating_sub(elapsed) as u32,
        }
    }

    pub(super) fn divide(&self) -> u8 {
        self.divide
    }

    /// Changes the divider. A running count continues from its present value, at the new rate.
    pub(super) fn set_divide(&mut self, divide: u8, now: u64) {
        let done = self.initial.saturating_sub(self.current_count(now));
        self.divide = divide;
        if self.started.is_some() {
            self.started = Some(now.wrapping_sub(self.tsc_ticks(done)));
        }
    }

    pub(super) fn tsc_deadline(&self) -> u64 {
        self.tsc_deadline.map_or(0, |(guest, _)| guest)
    }

    /// Arms the deadline. 0 disarms it. Does nothing outside TSC-deadline mode.
    pub(super) fn set_tsc_deadline(&mut self, deadline: u64, clock: Clock) {
        if self.mode != Mode::TscDeadline {
            return;
        }
        let ahead = deadline.saturating_sub(clock.tsc.wrapping_add(clock.offset));
        self.tsc_deadline = (deadline != 0).then(|| (deadline, clock.tsc.saturating_add(ahead)));
    }

    /// Returns the host's TSC at which it fires next.
    pub(super) fn deadline(&self) -> Option<u64> {
        match self.mode {
            Mode::TscDeadline => self.tsc_deadline.map(|(_, host)| host),
            _ => self.started.map(|s| s.wrapping_add(self.tsc_ticks(self.initial))),
        }
    }

    pub(super) fn is_periodic(&self) -> bool {
        self.mode == Mode::Periodic
    }

    /// Stops it after it has fired.
    pub(super) fn stop(&mut self) {
        self.started = None;
        self.tsc_deadline = None;
    }

    /// Whether it has fired by `now`. If so, prepares its next period. Several missed periods count as one, because
    /// their interrupts would also become one in the IRR.
    pub(super) fn expire(&mut self, now: u64) -> bool {
        if self.mode == Mode::TscDeadline {
            let fired = self.tsc_deadline.is_some_and(|(_, host)| now >= host);
            if fired {
                self.tsc_deadline = None;
            }
            return fired;
        }
        let Some(started) = self.started else { return false };
        let elapsed = Self::elapsed(started, now);
        let period = NonZero::new(self.tsc_ticks(self.initial)).unwrap_or(NonZero::<u64>::MIN);
        if elapsed < period.get() {
            return false;
        }
        let next = started.wrapping_add(elapsed.saturating_sub(elapsed % period));
        self.started = (self.mode == Mode::Periodic).then_some(next);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Clock = Clock { tsc: 1_000_000, offset: 0 };

    /// A timer of 1 GHz under a TSC of 2.5 GHz.
    fn timer(mode: Mode) -> Timer {
        let mut t = Timer::new(1_000_000_000, 2_500_000_000);
        t.set_mode(mode);
        t.set_divide(0b1011, 0); // by 1
        t
    }

    #[test]
    fn dividers_are_those_of_the_manual() {
        for (code, divisor) in [
            (0b0000, 2),
            (0b0001, 4),
            (0b0010, 8),
            (0b0011, 16),
            (0b1000, 32),
            (0b1001, 64),
            (0b1010, 128),
            (0b1011, 1),
        ] {
            let mut t = timer(Mode::OneShot);
            t.set_divide(code, 0);
            assert_eq!(t.divisor(), divisor, "{code:#b}");
        }
    }

    #[test]
    fn one_shot_fires_once_at_its_count_and_not_before() {
        let mut t = timer(Mode::OneShot);
        t.set_initial_count(1001, NOW.tsc);
        let deadline = t.deadline().unwrap();
        assert_eq!(deadline, NOW.tsc + 2503, "1001 * 2.5 rounded up");
        assert_eq!(t.current_count(NOW.tsc + 2500), 1);
        assert!(!t.expire(deadline - 1));
        assert!(t.expire(deadline));
        assert_eq!((t.deadline(), t.current_count(deadline), t.initial_count()), (None, 0, 1001));
        assert!(!t.expire(u64::MAX / 2));
    }

    #[test]
    fn periodic_keeps_its_phase_and_folds_missed_periods() {
        let mut t = timer(Mode::Periodic);
        t.set_initial_count(1000, NOW.tsc);
        assert!(t.expire(NOW.tsc + 2500 * 7 + 3));
        assert_eq!(t.deadline(), Some(NOW.tsc + 2500 * 8));
        assert!(!t.expire(NOW.tsc + 2500 * 8 - 1));
        assert_eq!(t.current_count(NOW.tsc + 2500 * 7 + 250), 900);
        t.set_initial_count(0, NOW.tsc);
        assert_eq!(t.deadline(), None);
    }

    #[test]
    fn a_change_of_divider_keeps_the_count() {
        let mut t = timer(Mode::OneShot);
        t.set_initial_count(1000, NOW.tsc);
        t.set_divide(0b0000, NOW.tsc + 1000); // 400 gone
        assert_eq!(t.current_count(NOW.tsc + 1000), 600);
        assert_eq!(t.deadline(), Some(NOW.tsc + 1000 + 600 * 5));
    }

    #[test]
    fn a_tsc_deadline_is_the_guests_time() {
        let mut t = timer(Mode::TscDeadline);
        let clock = Clock { tsc: 5000, offset: 0u64.wrapping_sub(4000) }; // the guest reads 1000
        t.set_tsc_deadline(1700, clock);
        assert_eq!((t.deadline(), t.tsc_deadline()), (Some(5700), 1700));
        assert!(!t.expire(5699));
        assert!(t.expire(5700));
        assert_eq!((t.deadline(), t.tsc_deadline()), (None, 0));
        t.set_tsc_deadline(1, clock);
        assert_eq!(t.deadline(), Some(5000), "past already: at once");
        t.set_tsc_deadline(0, clock);
        assert_eq!(t.deadline(), None);
        t.set_tsc_deadline(u64::MAX, clock);
        assert!(!t.expire(1 << 62));
    }

    #[test]
    fn an_armed_deadline_follows_the_guests_tsc() {
        let mut t = timer(Mode::TscDeadline);
        t.set_tsc_deadline(1_500_000, NOW);
        assert_eq!(t.deadline(), Some(1_500_000));
        // The guest sets its TSC back by 400,000: the deadline comes that much later. Then ahead, and it is due.
        t.set_tsc_deadline(t.tsc_deadline(), Clock { offset: 0_u64.wrapping_sub(400_000), ..NOW });
        assert_eq!((t.deadline(), t.tsc_deadline()), (Some(1_900_000), 1_500_000));
        t.set_tsc_deadline(t.tsc_deadline(), Clock { offset: 600_000, ..NOW });
        assert!(t.expire(NOW.tsc));
    }

    #[test]
    fn modes_do_not_leak_into_each_other() {
        let mut t = timer(Mode::OneShot);
        t.set_tsc_deadline(2_000_000, NOW);
        assert_eq!(t.deadline(), None, "no deadline outside its mode");
        t.set_initial_count(10, NOW.tsc);
        t.set_mode(Mode::TscDeadline);
        assert_eq!(t.deadline(), None);
        t.set_initial_count(10, NOW.tsc);
        assert_eq!((t.deadline(), t.current_count(NOW.tsc)), (None, 0), "no count in deadline mode");
        t.set_tsc_deadline(2_000_000, NOW);
        t.set_mode(Mode::Periodic);
        assert_eq!(t.deadline(), None);
    }
}
