//! Finds the known word that is nearest to an unknown one, for "did you mean".

use alloc::vec::Vec;

/// Returns the word of `known` with the smallest distance to `word`, if the distance is at most a third of its letters,
/// or one letter. Otherwise returns a known word that begins with `word`.
#[must_use]
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    // Names here are short, so a long word is not similar to any of them. This also keeps the table below small.
    if word.is_empty() || word.len() > 64 {
        return None;
    }
    let starts = known.iter().copied().find(|candidate| word.len() >= 2 && candidate.starts_with(word));
    known
        .iter()
        .map(|&candidate| (distance(word, candidate), candidate))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, candidate)| distance <= (candidate.chars().count() / 3).max(1))
        .map(|(_, candidate)| candidate)
        .or(starts)
}

/// Returns the number of insertions, deletions, replacements and exchanges of neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, x) in a.chars().enumerate() {
        let mut next: Vec<usize> = Vec::with_capacity(row.len());
        next.push(i.saturating_add(1));
        for (j, y) in b.iter().enumerate() {
            // One more than a neighbour's. What is not in the row is never the least.
            let after = |row: &[usize], column: usize| row.get(column).map_or(usize::MAX, |n| n.saturating_add(1));
            let same = row.get(j).copied().filter(|_| x == *y).unwrap_or(usize::MAX);
            let mut here = same.min(after(&row, j)).min(after(&next, j)).min(after(&row, j.saturating_add(1)));
            if let Some(k) = j.checked_sub(1)
                && b.get(k) == Some(&x)
                && last == Some(*y)
            {
                here = here.min(after(&before, k));
            }
            next.push(here);
        }
        before = core::mem::replace(&mut row, next);
        last = Some(x);
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = ["list", "start", "restart", "memory", "completion"];
        assert_eq!(nearest("lsit", &["start", "list"]), Some("list"));
        assert_eq!(nearest("lqqt", &["start", "list"]), None, "two letters of four are too many");
        assert_eq!(nearest("lst", &known), Some("list"));
        assert_eq!(nearest("memroy", &known), Some("memory"));
        assert_eq!(nearest("compl", &known), Some("completion"), "a beginning");
        assert_eq!(nearest("xyzzy", &known), None);
        assert_eq!(nearest("", &known), None);
    }

    #[test]
    fn distances_are_the_known_ones() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("ca", "abc"), 3);
        assert_eq!(distance("abcd", "badc"), 2);
    }
}
