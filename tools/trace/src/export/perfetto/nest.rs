//! Orders what happened on one track so that begins and ends are paired and nested, and times never go back.
//!
//! On Perfetto's tracks an end closes what began last. Records of a sound trace are nested already: a turn contains its
//! visits. Records that are not are cut at the end of what contains their begin, because a trace may come from a machine
//! that writes what it likes.

/// Something with a begin and an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Begin in ns.
    pub begin: u64,
    /// End in ns, not before the begin.
    pub end: u64,
    /// It has no length by its nature: an instant, not a slice.
    pub instant: bool,
}

/// A step along a track. `usize` is the place of the interval in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A slice begins.
    Begin {
        /// Which.
        which: usize,
        /// When, in ns.
        at: u64,
        /// It is cut: its record lasts longer than what it is in.
        cut: bool,
    },
    /// The slice that began last and has not ended, ends.
    End {
        /// When, in ns.
        at: u64,
    },
    /// An instant.
    Instant {
        /// Which.
        which: usize,
        /// When, in ns.
        at: u64,
    },
}

/// Calls `step` for each begin, end and instant, in the order of time.
///
/// # Errors
/// The first error of `step`.
pub fn walk<E>(intervals: &[Interval], mut step: impl FnMut(Step) -> Result<(), E>) -> Result<(), E> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    // What begins at the same time: the longest is around the others. Instants are innermost.
    order.sort_by_key(|&which| {
        intervals.get(which).map(|i| (i.begin, i.instant, u64::MAX.saturating_sub(i.end.max(i.begin))))
    });
    let mut open: Vec<u64> = Vec::new();
    for which in order {
        let Some(interval) = intervals.get(which) else { continue };
        let at = interval.begin;
        while let Some(end) = open.pop_if(|end| *end <= at) {
            step(Step::End { at: end })?;
        }
        if interval.instant {
            step(Step::Instant { which, at })?;
            continue;
        }
        let wanted = interval.end.max(at);
        let end = open.last().map_or(wanted, |&outer| wanted.min(outer));
        step(Step::Begin { which, at, cut: end < wanted })?;
        open.push(end);
    }
    while let Some(end) = open.pop() {
        step(Step::End { at: end })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn steps(intervals: &[Interval]) -> Vec<Step> {
        let mut steps = Vec::new();
        let Ok(()) = walk(intervals, |step| {
            steps.push(step);
            Ok::<_, Infallible>(())
        });
        steps
    }

    fn slice(begin: u64, end: u64) -> Interval {
        Interval { begin, end, instant: false }
    }

    #[test]
    fn a_turn_contains_its_visits_and_ends_before_the_next() {
        use Step::{Begin, End};
        let found = steps(&[slice(20, 30), slice(0, 10), slice(0, 4), slice(4, 10)]);
        let begin = |which, at| Begin { which, at, cut: false };
        let end = |at| End { at };
        assert_eq!(found, [begin(1, 0), begin(2, 0), end(4), begin(3, 4), end(10), end(10), begin(0, 20), end(30)]);
    }

    #[test]
    fn what_sticks_out_of_its_slice_is_cut_and_marked() {
        use Step::{Begin, End};
        let found = steps(&[slice(0, 10), slice(5, 15)]);
        assert_eq!(
            found,
            [
                Begin { which: 0, at: 0, cut: false },
                Begin { which: 1, at: 5, cut: true },
                End { at: 10 },
                End { at: 10 }
            ]
        );
    }

    proptest! {
        #[test]
        fn any_intervals_become_paired_nested_and_rising(
            parts in proptest::collection::vec((0_u64..60, 0_u64..30, any::<bool>()), 0..60),
            far in any::<bool>(),
        ) {
            let base = if far { u64::MAX - 60 } else { 0 };
            let intervals: Vec<Interval> = parts
                .iter()
                .map(|&(begin, length, instant)| Interval {
                    begin: base.saturating_add(begin), end: base.saturating_add(begin).saturating_add(length), instant })
                .collect();
            let (mut last, mut depth, mut seen) = (0, 0_i32, vec![0; intervals.len()]);
            for step in steps(&intervals) {
                let at = match step {
                    Step::Begin { which, at, .. } => {
                        prop_assert!(!intervals[which].instant && intervals[which].begin == at);
                        seen[which] += 1;
                        depth += 1;
                        at
                    }
                    Step::Instant { which, at } => {
                        prop_assert!(intervals[which].instant && intervals[which].begin == at);
                        seen[which] += 1;
                        at
                    }
                    Step::End { at } => {
                        depth -= 1;
                        at
                    }
                };
                prop_assert!(at >= last && depth >= 0);
                last = at;
            }
            prop_assert_eq!(depth, 0);
            prop_assert!(seen.iter().all(|&times| times == 1));
        }

        #[test]
        fn what_is_nested_is_not_cut(lengths in proptest::collection::vec(1_u64..20, 1..20)) {
            // A row of slices with one around them.
            let mut intervals = Vec::new();
            let mut at = 0;
            for length in &lengths {
                intervals.push(slice(at, at + length));
                at += length;
            }
            intervals.push(slice(0, at));
            let cut = steps(&intervals).into_iter().any(|step| matches!(step, Step::Begin { cut: true, .. }));
            prop_assert!(!cut);
        }
    }
}
