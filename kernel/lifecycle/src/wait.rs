//! How long a guest has waited for an engine or for the zeroing of its memory, and when the operator is told.

/// Milliseconds after which the operator is told that a guest still waits. An engine answers within milliseconds if no disk
/// hangs. The second time, not even the disks' drivers have ended their requests, which they do within about a minute.
const TOLD_AFTER: [u64; 2] = [1_000, 120_000];

/// A wait. It begins at the first tick after an action that is answered later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    since: Option<u64>,
    /// How often the operator was told.
    told: usize,
}

impl Wait {
    /// Whether the operator was told.
    pub(crate) const fn is_told(self) -> bool {
        self.told != 0
    }

    /// Checks the clock. Returns after how many milliseconds the operator is to be told now.
    pub(crate) fn tick(&mut self, now: u64) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let due = *TOLD_AFTER.get(self.told)?;
        (now.saturating_sub(since) >= due).then(|| {
            self.told += 1;
            due
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_is_told_after_a_second_and_after_two_minutes_and_then_no_more() {
        let mut wait = Wait::default();
        let told: Vec<_> =
            [5_000, 5_999, 6_000, 6_001, 124_999, 125_000, 125_001, 1 << 40].map(|now| wait.tick(now)).into();
        assert_eq!(told, [None, None, Some(1_000), None, None, Some(120_000), None, None]);
        assert!(wait.is_told());
    }
}
