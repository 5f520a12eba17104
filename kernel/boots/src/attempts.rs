//! Which configuration a boot takes: `sidecore.toml`, or `previous.toml` if the other one has not come to run often enough.
//!
//! A boot counts itself before it reads the configuration, and forgets the count when it has come to run ([`settling`](crate::settling)), or
//! when it ends in order. So the count is of boots that a panic, a hang with a reset, or a cut of the power has ended before. Another file has a count of its own, because its
//! SHA-256 is another one. After `previous.toml` has come to run, the count of the other file stays: it is not tried again
//! until somebody changes it.

use crate::record::Record;

/// Attempts without success after which `previous.toml` is taken.
pub const LIMIT: u32 = 2;

/// The attempts of a configuration, with the one that begins now. `before`: the record of the last boot; `config`: SHA-256 of
/// `sidecore.toml`.
#[must_use]
pub fn with_this_one(before: Option<&Record>, config: &[u8; 32]) -> u32 {
    with_failed(before.filter(|before| before.config == *config).map_or(0, |before| before.attempts))
}

/// The attempts with the one that begins now, after so many that have failed.
#[must_use]
pub fn with_failed(failed: u32) -> u32 {
    // The boots that took the other file are no attempts of this one.
    failed.min(LIMIT).saturating_add(1)
}

/// Whether the boot takes `previous.toml`, if there is one.
#[must_use]
pub const fn takes_previous(attempts: u32) -> bool {
    attempts > LIMIT
}

/// The attempts to keep once a boot has come to run with the one file or the other.
#[must_use]
pub const fn after_success(attempts: u32, took_previous: bool) -> u32 {
    if took_previous { attempts } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::State;

    const A: [u8; 32] = [1; 32];
    const B: [u8; 32] = [2; 32];

    /// A boot with this configuration, which comes to run or not. Returns whether it takes `previous.toml`.
    fn boot(record: &mut Option<Record>, config: [u8; 32], succeeds: impl Fn(bool) -> bool) -> bool {
        let attempts = with_this_one(record.as_ref(), &config);
        let previous = takes_previous(attempts);
        let (attempts, state) = match succeeds(previous) {
            true => (after_success(attempts, previous), State::Running),
            false => (attempts, State::Booting),
        };
        *record = Some(Record { boot: 1, attempts, state, config });
        previous
    }

    #[test]
    fn the_third_boot_takes_the_other_file_and_keeps_to_it_until_the_file_changes() {
        let mut record = None;
        let bad = |previous: bool| previous;
        let took: Vec<bool> = (0..5).map(|_| boot(&mut record, A, bad)).collect();
        assert_eq!(took, [false, false, true, true, true]);
        assert!(!boot(&mut record, B, |_| true), "another file is tried");
        assert!(!boot(&mut record, A, bad), "nothing is remembered of the first one then");
    }

    #[test]
    fn a_boot_that_comes_to_run_ends_the_count() {
        let mut record = None;
        for _ in 0..10 {
            assert!(!boot(&mut record, A, |_| false));
            assert!(!boot(&mut record, A, |_| true));
        }
    }

    #[test]
    fn if_the_other_file_fails_too_it_is_taken_on_and_on() {
        let mut record = None;
        let took: Vec<bool> = (0..6).map(|_| boot(&mut record, A, |_| false)).collect();
        assert_eq!(took, [false, false, true, true, true, true]);
        let last = Record { boot: 1, attempts: u32::MAX, state: State::Booting, config: A };
        assert_eq!(with_this_one(Some(&last), &A), LIMIT + 1, "boots with the other file do not count");
    }

    #[test]
    fn without_a_record_nothing_is_known() {
        assert_eq!(with_this_one(None, &A), 1);
    }
}
