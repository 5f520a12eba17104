//! How a verb ended, and how many tests went how.

use crate::ui;

/// How a verb ended that could be carried out.
pub enum Outcome {
    /// All is well.
    Good,
    /// Something under test failed.
    Failed,
}

impl Outcome {
    /// Good, or failed.
    pub fn of(good: bool) -> Self {
        if good { Self::Good } else { Self::Failed }
    }
}

/// How many tests went how, and which of them went wrong.
#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// What failed, by name as far as it has one.
    pub failures: Vec<String>,
}

impl Tally {
    /// Counts something that has a name.
    pub fn count(&mut self, name: String, good: bool) {
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(name);
        }
    }

    /// Adds what others counted.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// The last words on all of it, for people.
    pub fn show(&self) {
        for name in &self.failures {
            println!("{} {name}", ui::verdict("FAILED", false));
        }
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed);
    }
}
