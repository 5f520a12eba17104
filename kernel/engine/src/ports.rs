//! Sets of an engine's ports, in words of a group each: a turn looks at one word for a group, whatever its ports are.

/// Ports of an engine at most. Of 112 of them with all their queues, 1,008 are queues of one engine.
pub const MAX_PORTS: usize = 128;
/// Ports of a group.
const GROUP: usize = u64::BITS as usize;
/// Groups of an engine.
pub(crate) const GROUPS: usize = MAX_PORTS / GROUP;
const _: () = assert!(MAX_PORTS == u128::BITS as usize);

/// A port's group, and its bit there. A port that cannot be has the bit of one that can.
#[inline(always)]
pub(crate) const fn place(port: usize) -> (usize, u64) {
    (port / GROUP % GROUPS, 1 << (port % GROUP))
}

/// Some of the ports of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; GROUPS]);

impl PortSet {
    /// No port.
    pub const NONE: Self = Self([0; GROUPS]);

    /// From a word for each group.
    pub(crate) const fn of_words(words: [u64; GROUPS]) -> Self {
        Self(words)
    }

    /// Adds a port, below [`MAX_PORTS`].
    #[inline(always)]
    pub const fn insert(&mut self, port: usize) {
        let (group, bit) = place(port);
        self.0[group] |= bit;
    }

    /// Takes a port out.
    #[inline(always)]
    pub const fn remove(&mut self, port: usize) {
        let (group, bit) = place(port);
        self.0[group] &= !bit;
    }

    /// Whether a port is among them.
    #[must_use]
    #[inline(always)]
    pub const fn contains(&self, port: usize) -> bool {
        let (group, bit) = place(port);
        self.0[group] & bit != 0
    }

    /// Adds all of another set.
    #[inline(always)]
    pub(crate) fn insert_all(&mut self, others: Self) {
        let ([low, high], [others_low, others_high]) = (self.0, others.0);
        self.0 = [low | others_low, high | others_high];
    }

    /// A bit for each port.
    #[inline(always)]
    const fn bits(self) -> u128 {
        let [low, high] = self.0;
        low as u128 | (high as u128) << GROUP
    }

    /// The first one from `start` on that is not in `gone`, or else the first of all that are not.
    pub(crate) fn next_from(&self, start: usize, gone: &Self) -> Option<usize> {
        let left = self.bits() & !gone.bits();
        let behind = left & (u128::MAX << (start % MAX_PORTS));
        Members(behind).next().or_else(|| Members(left).next())
    }
}

impl IntoIterator for PortSet {
    type Item = usize;
    type IntoIter = Members;

    #[inline]
    fn into_iter(self) -> Members {
        Members(self.bits())
    }
}

/// The ports of a set, in ascending order.
#[derive(Clone, Debug)]
pub struct Members(u128);

impl Iterator for Members {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        // By words: what is done with both at once takes twice as many instructions.
        let (low, high) = (self.0 as u64, (self.0 >> GROUP) as u64);
        if low != 0 {
            self.0 = u128::from(low & (low - 1)) | u128::from(high) << GROUP;
            return Some(low.trailing_zeros() as usize);
        }
        if high == 0 {
            return None;
        }
        self.0 = u128::from(high & (high - 1)) << GROUP;
        Some(GROUP + high.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{MAX_PORTS, PortSet};

    proptest! {
        #[test]
        fn a_set_agrees_with_a_tree(
            steps in proptest::collection::vec((0..MAX_PORTS, any::<bool>()), 0..200),
            gone in proptest::collection::btree_set(0..MAX_PORTS, 0..60),
            start in 0..MAX_PORTS,
        ) {
            let (mut set, mut tree) = (PortSet::NONE, BTreeSet::new());
            for (port, add) in steps {
                if add { set.insert(port) } else { set.remove(port) }
                if add { tree.insert(port) } else { tree.remove(&port) };
            }
            prop_assert_eq!(set.into_iter().collect::<Vec<_>>(), tree.iter().copied().collect::<Vec<_>>());
            prop_assert!((0..MAX_PORTS).all(|port| set.contains(port) == tree.contains(&port)));
            let mut without = PortSet::NONE;
            gone.iter().for_each(|&port| without.insert(port));
            let left: BTreeSet<_> = tree.difference(&gone).copied().collect();
            let wanted = left.range(start..).next().or_else(|| left.first()).copied();
            prop_assert_eq!(set.next_from(start, &without), wanted);
            without.insert_all(set);
            prop_assert_eq!(without.into_iter().collect::<BTreeSet<_>>(), tree.union(&gone).copied().collect());
        }
    }
}
