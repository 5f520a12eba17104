//! Samples of exits: a record for one of so many exits of a vCPU for the same reason.
//!
//! How many is one number for all cores. A vCPU's core counts its own exits by reason. So a reason with few exits is not
//! drowned by one with many, and a guest cannot choose by a frequent reason which exits of another one are seen. A guest that
//! knows the number can keep out of the samples of one reason; what counts all exits are the counters.

use core::sync::atomic::{AtomicU32, Ordering};

/// Most exits for a record.
pub const MOST_ONE_OF: u32 = 1 << 20;

/// For how many exits there is a record. Any core may read it, and one may change it.
#[derive(Debug)]
pub struct OneOf(AtomicU32);

impl Default for OneOf {
    fn default() -> Self {
        Self::new()
    }
}

impl OneOf {
    /// A record for each exit.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(1))
    }

    /// For how many exits there is a record, from 1 to [`MOST_ONE_OF`].
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set(&self, one_of: u32) {
        self.0.store(one_of.clamp(1, MOST_ONE_OF), Ordering::Relaxed);
    }
}

/// Chooses the exits of a vCPU that have records. There are `REASONS` reasons. Only the vCPU's core uses it: two at once would count
/// wrongly.
#[derive(Debug)]
pub struct Sampler<const REASONS: usize> {
    /// By reason: exits without a record until the next one with a record.
    left: [AtomicU32; REASONS],
}

impl<const REASONS: usize> Default for Sampler<REASONS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const REASONS: usize> Sampler<REASONS> {
    /// The first exit of each reason has a record.
    #[must_use]
    pub const fn new() -> Self {
        Self { left: [const { AtomicU32::new(0) }; REASONS] }
    }

    /// Begins anew: the first exit of each reason has a record.
    pub fn restart(&self) {
        self.left.iter().for_each(|left| left.store(0, Ordering::Relaxed));
    }

    /// Counts an exit for a reason. Returns whether it has a record: the first one has, and from then on each `one_of`th.
    #[must_use]
    #[inline]
    pub fn takes(&self, reason: usize, one_of: u32) -> bool {
        let Some(left) = self.left.get(reason) else { return true };
        // More may be left from a period with fewer samples.
        let most = one_of.saturating_sub(1);
        let now = left.load(Ordering::Relaxed).min(most);
        left.store(now.checked_sub(1).unwrap_or(most), Ordering::Relaxed);
        now == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_of_so_many_of_each_reason_is_taken_and_the_first() {
        let sampler = Sampler::<2>::new();
        let taken: Vec<bool> = (0..7).map(|_| sampler.takes(0, 3)).collect();
        assert_eq!(taken, [true, false, false, true, false, false, true]);
        assert!(sampler.takes(1, 3), "another reason has its own count");
        assert!(!sampler.takes(1, 3));
        // Fewer are left than the new number has.
        assert!((0..4).all(|_| sampler.takes(1, 1)));
        assert!(sampler.takes(9, 3), "a reason that is not known has no count");
    }

    #[test]
    fn a_number_is_within_its_limits() {
        let one_of = OneOf::new();
        let got = [0, 1, 16, u32::MAX].map(|number| {
            one_of.set(number);
            one_of.get()
        });
        assert_eq!(got, [1, 1, 16, MOST_ONE_OF]);
    }

    proptest! {
        #[test]
        fn exits_are_known_from_the_samples_to_less_than_the_number(
            one_of in 1_u32..40, exits in proptest::collection::vec(0_usize..3, 0..400)
        ) {
            let sampler = Sampler::<3>::new();
            let (mut all, mut taken) = ([0_u32; 3], [0_u32; 3]);
            for reason in exits {
                all[reason] += 1;
                taken[reason] += u32::from(sampler.takes(reason, one_of));
            }
            for (all, taken) in all.into_iter().zip(taken) {
                prop_assert_eq!(taken, all.div_ceil(one_of));
            }
        }
    }
}
