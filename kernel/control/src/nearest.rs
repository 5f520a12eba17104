//! Finds the known word that is nearest to an unknown one, for "did you mean".

/// Longest word in bytes that is compared. Names here are short, so a longer word is not similar to any of them.
pub const MAX_WORD: usize = 64;

/// Returns the word of `known` with the smallest distance to `word`, if the distance is at most a third of its letters,
/// or one letter. Otherwise returns a known word that begins with `word`. It allocates nothing.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    if word.is_empty() || word.len() > MAX_WORD {
        return None;
    }
    let starts = known.clone().into_iter().find(|candidate| word.len() >= 2 && candidate.starts_with(word));
    known
        .into_iter()
        .filter_map(|candidate| Some((distance(word, candidate)?, candidate)))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, candidate)| distance <= (candidate.chars().count() / 3).max(1))
        .map(|(_, candidate)| candidate)
        .or(starts)
}

/// A row of the table of distances.
type Row = [usize; MAX_WORD + 1];

/// Returns the number of insertions, deletions, replacements and exchanges of neighbours (optimal string alignment).
/// `None`: `b` has more characters than [`MAX_WORD`].
fn distance(a: &str, b: &str) -> Option<usize> {
    let columns = b.chars().count();
    if columns > MAX_WORD {
        return None;
    }
    let at = |row: &Row, column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
    let after = |row: &Row, column: usize| at(row, column).saturating_add(1);
    let mut before: Row = [usize::MAX - 1; MAX_WORD + 1];
    let mut row: Row = core::array::from_fn(|column| column);
    let mut last = None;
    for (i, x) in a.chars().enumerate() {
        let mut next: Row = [i.saturating_add(1); MAX_WORD + 1];
        let mut left = None;
        for (j, y) in b.chars().enumerate() {
            let same = at(&row, j).saturating_add(usize::from(x != y));
            let mut here = same.min(after(&next, j)).min(after(&row, j.saturating_add(1)));
            if let Some(k) = j.checked_sub(1)
                && left == Some(x)
                && last == Some(y)
            {
                here = here.min(after(&before, k));
            }
            if let Some(place) = next.get_mut(j.saturating_add(1)) {
                *place = here;
            }
            left = Some(y);
        }
        before = core::mem::replace(&mut row, next);
        last = Some(x);
    }
    row.get(columns).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = ["list", "start", "restart", "memory", "completion"];
        assert_eq!(nearest("lsit", ["start", "list"]), Some("list"));
        assert_eq!(nearest("lqqt", ["start", "list"]), None, "two letters of four are too many");
        assert_eq!(nearest("lst", known), Some("list"));
        assert_eq!(nearest("memroy", known), Some("memory"));
        assert_eq!(nearest("compl", known), Some("completion"), "a beginning");
        assert_eq!(nearest("xyzzy", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn distances_are_the_known_ones() {
        assert_eq!(distance("kitten", "sitting"), Some(3));
        assert_eq!(distance("", "abc"), Some(3));
        assert_eq!(distance("abc", ""), Some(3));
        assert_eq!(distance("ca", "abc"), Some(3));
        assert_eq!(distance("abcd", "badc"), Some(2));
    }
}
