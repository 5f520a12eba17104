//! Sets of an engine's slots. A slot is the index of a device in its engine. A group of 64 slots is one word, so a turn
//! reads one word for each group.

/// Most slots of an engine. 112 slots with all their queues make 1,008 queues, above the aim of 1,000.
pub const MAX_SLOTS: usize = 128;
/// Slots of a group: the bits of a word.
const GROUP: usize = u64::BITS as usize;
/// Groups of an engine.
pub(crate) const GROUPS: usize = MAX_SLOTS / GROUP;
const _: () = assert!(MAX_SLOTS == u128::BITS as usize);

/// A slot's group, and its bit there. The index is reduced modulo [`MAX_SLOTS`].
#[inline(always)]
pub(crate) const fn place(slot: usize) -> (usize, u64) {
    (slot / GROUP % GROUPS, 1 << (slot % GROUP))
}

/// Some of the slots of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSet([u64; GROUPS]);

impl SlotSet {
    /// No slot.
    pub const NONE: Self = Self([0; GROUPS]);

    /// A set from one word for each group.
    pub(crate) const fn of_words(words: [u64; GROUPS]) -> Self {
        Self(words)
    }

    /// Adds a slot, below [`MAX_SLOTS`].
    #[inline(always)]
    pub fn insert(&mut self, slot: usize) {
        let (group, bit) = place(slot);
        if let Some(word) = self.0.get_mut(group) {
            *word |= bit;
        }
    }

    /// Takes a slot out.
    #[inline(always)]
    pub fn remove(&mut self, slot: usize) {
        let (group, bit) = place(slot);
        if let Some(word) = self.0.get_mut(group) {
            *word &= !bit;
        }
    }

    /// Whether a slot is among them.
    #[must_use]
    #[inline(always)]
    pub fn contains(&self, slot: usize) -> bool {
        let (group, bit) = place(slot);
        self.0.get(group).is_some_and(|word| word & bit != 0)
    }

    /// Adds all of another set.
    #[inline(always)]
    pub fn insert_all(&mut self, others: Self) {
        let ([low, high], [others_low, others_high]) = (self.0, others.0);
        self.0 = [low | others_low, high | others_high];
    }

    /// A bit for each slot.
    #[inline(always)]
    const fn bits(self) -> u128 {
        let [low, high] = self.0;
        low as u128 | (high as u128) << GROUP
    }

    /// Returns the first slot from `start` on that is not in `gone`. If there is none, continues with slot 0.
    #[must_use]
    pub fn next_from(&self, start: usize, gone: &Self) -> Option<usize> {
        let left = self.bits() & !gone.bits();
        let behind = left & (u128::MAX << (start % MAX_SLOTS));
        Members(behind).next().or_else(|| Members(left).next())
    }
}

impl IntoIterator for SlotSet {
    type Item = usize;
    type IntoIter = Members;

    #[inline]
    fn into_iter(self) -> Members {
        Members(self.bits())
    }
}

/// The slots of a set, in ascending order.
#[derive(Clone, Debug)]
pub struct Members(u128);

impl Iterator for Members {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        // Each word by itself. Both at once as u128 take twice as many instructions.
        let (low, high) = (self.0 as u64, (self.0 >> GROUP) as u64);
        if low != 0 {
            self.0 = u128::from(low & low.wrapping_sub(1)) | u128::from(high) << GROUP;
            return Some(low.trailing_zeros() as usize);
        }
        if high == 0 {
            return None;
        }
        self.0 = u128::from(high & high.wrapping_sub(1)) << GROUP;
        Some(GROUP.saturating_add(high.trailing_zeros() as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{MAX_SLOTS, SlotSet};

    proptest! {
        #[test]
        fn a_set_agrees_with_a_tree(
            steps in proptest::collection::vec((0..MAX_SLOTS, any::<bool>()), 0..200),
            gone in proptest::collection::btree_set(0..MAX_SLOTS, 0..60),
            start in 0..MAX_SLOTS,
        ) {
            let (mut set, mut tree) = (SlotSet::NONE, BTreeSet::new());
            for (slot, add) in steps {
                if add { set.insert(slot) } else { set.remove(slot) }
                if add { tree.insert(slot) } else { tree.remove(&slot) };
            }
            prop_assert_eq!(set.into_iter().collect::<Vec<_>>(), tree.iter().copied().collect::<Vec<_>>());
            prop_assert!((0..MAX_SLOTS).all(|slot| set.contains(slot) == tree.contains(&slot)));
            let mut without = SlotSet::NONE;
            gone.iter().for_each(|&slot| without.insert(slot));
            let left: BTreeSet<_> = tree.difference(&gone).copied().collect();
            let wanted = left.range(start..).next().or_else(|| left.first()).copied();
            prop_assert_eq!(set.next_from(start, &without), wanted);
            without.insert_all(set);
            prop_assert_eq!(without.into_iter().collect::<BTreeSet<_>>(), tree.union(&gone).copied().collect());
        }
    }
}
