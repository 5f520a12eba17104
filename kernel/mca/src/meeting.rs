//! The cores that a machine check has stopped meet, and one of them judges.
//!
//! Intel's machine checks without LMCE stop all cores, and any of them may have the cause in its banks. The first that comes
//! is the judge. It waits until all are there, or until its patience is over. Then it closes the round, and who comes later
//! waits for the next one. The others wait until the judge ends the round.
//!
//! ```text
//!  state: round | closed | arrived        judge:   open ──all there──▶ closed ──judged──▶ open, next round
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 31;
const ARRIVED: u64 = CLOSED - 1;
const ROUND: u64 = 1 << 32;

/// What a core waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The judge waits for the other cores.
    ForOthers,
    /// A core waits for the judge.
    ForJudge,
}

/// A place where up to `N` cores meet, again and again.
#[derive(Debug)]
pub struct Meeting<const N: usize> {
    state: AtomicU64,
    /// Who came, in the order of arrival: the number plus one. 0 until that core has written it.
    members: [AtomicU64; N],
}

/// How a core has come out of [`Meeting::join`].
#[derive(Debug)]
pub enum Joined<'a, const N: usize> {
    /// It judges. The others wait.
    Judge(Judging<'a, N>),
    /// Another core has judged.
    Judged,
    /// The judge did not answer in time.
    Abandoned,
}

/// A closed round, for its judge. The round ends when this is dropped.
#[derive(Debug)]
pub struct Judging<'a, const N: usize> {
    meeting: &'a Meeting<N>,
    count: usize,
}

impl<const N: usize> Default for Meeting<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Meeting<N> {
    /// Makes one that nobody has joined.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), members: [const { AtomicU64::new(0) }; N] }
    }

    /// Joins with the core of this number. What the judge is to know must be stored before. `expected` is the number of
    /// cores that come. `patient` is asked again and again whether to wait any longer.
    pub fn join(&self, core: usize, expected: usize, mut patient: impl FnMut(Waiting) -> bool) -> Joined<'_, N> {
        let expected = expected.min(N) as u64;
        let mut seen = self.state.load(Ordering::Acquire);
        loop {
            if seen & CLOSED != 0 || seen & ARRIVED >= N as u64 {
                if !patient(Waiting::ForJudge) {
                    return Joined::Abandoned;
                }
                seen = self.state.load(Ordering::Acquire);
                continue;
            }
            match self.state.compare_exchange_weak(seen, seen.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        let (round, position) = (seen / ROUND, seen & ARRIVED);
        if let Some(member) = self.members.get(position as usize) {
            member.store((core as u64).saturating_add(1), Ordering::Release);
        }
        if position == 0 {
            while self.state.load(Ordering::Acquire) & ARRIVED < expected && patient(Waiting::ForOthers) {
                core::hint::spin_loop();
            }
            let closed = self.state.fetch_or(CLOSED, Ordering::AcqRel);
            return Joined::Judge(Judging { meeting: self, count: (closed & ARRIVED) as usize });
        }
        while self.state.load(Ordering::Acquire) / ROUND == round {
            if !patient(Waiting::ForJudge) {
                return Joined::Abandoned;
            }
            core::hint::spin_loop();
        }
        Joined::Judged
    }
}

impl<const N: usize> Judging<'_, N> {
    /// How many cores are here.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The cores that are here, in the order in which they came.
    pub fn cores(&self) -> impl Iterator<Item = usize> + Clone {
        self.meeting.members.iter().take(self.count).map(|member| {
            // Who is counted writes its number with its next instructions.
            let mut number = 0;
            while number == 0 {
                number = member.load(Ordering::Acquire);
            }
            (number as usize).saturating_sub(1)
        })
    }
}

impl<const N: usize> Drop for Judging<'_, N> {
    fn drop(&mut self) {
        // Every member has written its number before it may be cleared.
        self.cores().for_each(drop);
        self.meeting.members.iter().for_each(|member| member.store(0, Ordering::Relaxed));
        let round = self.meeting.state.load(Ordering::Relaxed) / ROUND;
        self.meeting.state.store(round.wrapping_add(1).wrapping_mul(ROUND), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn one_of_all_judges_and_sees_what_each_has_stored_in_every_round() {
        const CORES: usize = 4;
        const ROUNDS: usize = 200;
        let meeting = Meeting::<CORES>::new();
        let stored = [const { AtomicUsize::new(0) }; CORES];
        let judged = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for core in 0..CORES {
                let (meeting, stored, judged) = (&meeting, &stored, &judged);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        stored[core].store(round, Ordering::Relaxed);
                        let joined = meeting.join(core, CORES, |_| {
                            std::thread::yield_now();
                            true
                        });
                        match joined {
                            Joined::Judge(judging) => {
                                let mut cores: Vec<_> = judging.cores().collect();
                                cores.sort_unstable();
                                assert_eq!(cores, [0, 1, 2, 3]);
                                assert!(stored.iter().all(|s| s.load(Ordering::Relaxed) == round));
                                judged.fetch_add(1, Ordering::Relaxed);
                            }
                            Joined::Judged => assert_eq!(judged.load(Ordering::Relaxed), round),
                            Joined::Abandoned => panic!("abandoned"),
                        }
                    }
                });
            }
        });
        assert_eq!(judged.into_inner(), ROUNDS);
    }

    #[test]
    fn a_core_alone_judges_when_its_patience_is_over() {
        let meeting = Meeting::<3>::new();
        let mut asked = 0;
        let joined = meeting.join(2, 3, |what| {
            assert_eq!(what, Waiting::ForOthers);
            asked += 1;
            asked < 5
        });
        let Joined::Judge(judging) = joined else { panic!("not the judge") };
        assert_eq!((asked, judging.count(), judging.cores().collect::<Vec<_>>()), (5, 1, vec![2]));
    }

    #[test]
    fn who_comes_late_waits_for_the_next_round() {
        let meeting = Meeting::<3>::new();
        let Joined::Judge(judging) = meeting.join(0, 1, |_| true) else { panic!("not the judge") };
        assert!(matches!(meeting.join(1, 3, |what| what == Waiting::ForOthers), Joined::Abandoned));
        drop(judging);
        let Joined::Judge(judging) = meeting.join(1, 1, |_| false) else { panic!("not the judge") };
        assert_eq!(judging.cores().collect::<Vec<_>>(), [1]);
    }
}
