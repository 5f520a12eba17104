//! The outcome of a verb, and counts of passed and failed tests.

use anyhow::Result;

use crate::ui;

/// The most characters of a reason that are repeated in the list of failures.
const REASON: usize = 300;

/// The outcome of a verb that could be carried out.
pub enum Outcome {
    /// All is well.
    Good,
    /// Something under test failed.
    Failed,
}

impl Outcome {
    /// `Good` or `Failed`.
    pub fn of(good: bool) -> Self {
        if good { Self::Good } else { Self::Failed }
    }
}

/// Counts of passed and failed tests, and the names of those that failed.
#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// The names of failed tests, as far as they have one, and of a scenario or gate the reason.
    pub failures: Vec<String>,
}

impl Tally {
    /// Counts a test with a name.
    pub fn count(&mut self, name: String, good: bool) {
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(name);
        }
    }

    /// Counts a test with a name and a result. The list of failures has the first line of the reason, because people look
    /// there first.
    pub fn count_result<T>(&mut self, name: &str, result: &Result<T>) {
        let why = result.as_ref().err().map_or_else(String::new, |error| {
            let text = format!("{error:#}");
            let line: String = text.lines().next().unwrap_or_default().chars().take(REASON).collect();
            format!(": {line}")
        });
        self.count(format!("{name}{why}"), result.is_ok());
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// Prints the counts and the failures, for people.
    pub fn show(&self) {
        for name in &self.failures {
            println!("{} {name}", ui::verdict("FAILED", false));
        }
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed);
    }
}
