//! The rotation: scenarios that are too long for every day take turns. This module reads and writes the file of their
//! last runs, and chooses the rows whose turn it is. It runs nothing.
//!
//! The file counts its own updates. The age of a row is the number of updates since it ran.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};

/// Updates after which a row is too old. An update has time for six to nine of some 180 rows, and for fewer that never ran, so all of them take
/// some thirty updates.
pub const OLDEST: u64 = 40;
/// The file, below the root of the repository.
pub const FILE: &str = "tests/rotation.tsv";
/// Seconds to plan on Bochs for a row that has not passed: as many as a long row takes there, or the last row would end long after the
/// budget. A failure's own time is of no use: it often includes a long wait.
const UNKNOWN_ON_BOCHS: f64 = 600.0;
/// The same on other platforms.
const UNKNOWN: f64 = 280.0;

/// What takes a turn: a scenario on a platform, in a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The scenario's name.
    pub scenario: String,
    /// `qemu` or `bochs`.
    pub platform: String,
    /// `usual`, `full` for the long version (`--full`), or `checked` for the checked hypervisor (`--checked`).
    pub variant: String,
}

/// The result of a row's last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// It has not run.
    Never,
    /// It passed.
    Passed,
    /// It failed.
    Failed,
}

impl Went {
    /// The word in the file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Passed => "passed",
            Self::Failed => "failed",
        }
    }
}

/// A row of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What takes a turn.
    pub key: Key,
    /// The result of its last run.
    pub went: Went,
    /// Seconds that its last run took.
    pub seconds: f64,
    /// The update at which it ran last, or at which its row was added.
    pub update: u64,
    /// The day of that run, `-` if there was none.
    pub date: String,
    /// The sources of that run, `-` if there was none.
    pub sources: String,
}

impl Row {
    fn new(key: Key, update: u64) -> Self {
        Self { key, went: Went::Never, seconds: 0.0, update, date: "-".to_owned(), sources: "-".to_owned() }
    }

    /// Seconds that it will probably take.
    fn expected(&self) -> f64 {
        match (self.went, self.key.platform.as_str()) {
            (Went::Passed, _) => self.seconds,
            (_, "bochs") => UNKNOWN_ON_BOCHS,
            _ => UNKNOWN,
        }
    }

    /// The order of turns: failed rows, then the oldest, of which those that never ran come first. A row that has run must not wait for all that
    /// never ran: it would become too old.
    fn urgency(&self) -> (bool, u64, bool) {
        (self.went != Went::Failed, self.update, self.went != Went::Never)
    }
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rotation {
    /// How often it was updated.
    pub updates: u64,
    /// Its rows.
    pub rows: Vec<Row>,
}

const HEAD: &str = "# The rotation: the last run of each scenario that is too long for every day. `cargo mk test` runs those that failed last,\n\
                    # and the oldest, and updates this file: commit it with your work. `cargo mk e2e --rotation` lists it with ages.\n\
                    # update: the update of this file at which the row ran, or at which it was added. sources: the hash of all tracked\n\
                    # files of that run but Markdown and this one.\n";

impl Rotation {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let first = lines.next().context("the rotation has no line with the number of its updates")?;
        let updates = first.strip_prefix("updates ").and_then(|number| number.trim().parse().ok());
        let updates = updates.with_context(|| format!("{first:?} is not the number of updates"))?;
        let rows = lines.map(|line| row(line).with_context(|| format!("the rotation's line {line:?}")));
        Ok(Self { updates, rows: rows.collect::<Result<_>>()? })
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}updates {}\n\n", self.updates);
        let columns = ["# scenario", "platform", "variant", "went", "seconds", "update", "date", "sources"];
        let mut table = vec![columns.map(str::to_owned)];
        table.extend(self.rows.iter().map(|row| {
            let Key { scenario, platform, variant } = row.key.clone();
            let (went, seconds) = (row.went.word().to_owned(), format!("{:.0}", row.seconds));
            [scenario, platform, variant, went, seconds, row.update.to_string(), row.date.clone(), row.sources.clone()]
        }));
        let width = |column: usize| table.iter().map(|cells| cells[column].len()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for cells in &table {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// Makes a row for each key, in the order of the keys. Drops rows without a key.
    pub fn complete(&mut self, keys: &[Key]) {
        let mut old = std::mem::take(&mut self.rows);
        self.rows = keys
            .iter()
            .map(|key| match old.iter().position(|row| row.key == *key) {
                Some(index) => old.swap_remove(index),
                None => Row::new(key.clone(), self.updates),
            })
            .collect();
    }

    /// Seconds that the row with this key will probably take on a usual machine. `None` if there is no such row.
    pub fn expected(&self, key: &Key) -> Option<f64> {
        self.rows.iter().find(|row| row.key == *key).map(Row::expected)
    }

    /// Updates since a row ran or was added.
    pub fn age(&self, row: &Row) -> u64 {
        self.updates.saturating_sub(row.update)
    }

    /// Rows that should have had their turn by now.
    pub fn too_old(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| self.age(row) > OLDEST)
    }

    /// Chooses the rows whose turn it is, in the order of urgency, for this number of seconds. On Bochs `lanes` rows
    /// run side by side; a row on QEMU runs alone. The most urgent row is chosen even if it takes longer. Other rows
    /// that do not fit wait.
    pub fn choose(&self, seconds: f64, lanes: usize) -> Vec<Key> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| row.urgency());
        let mut alone = 0.0;
        let mut side_by_side = vec![0.0_f64; lanes.max(1)];
        let mut chosen = Vec::new();
        for row in rows {
            let end = |alone: f64, lanes: &[f64]| alone + lanes.iter().copied().fold(0.0, f64::max);
            let (mut alone_then, mut lanes_then) = (alone, side_by_side.clone());
            if row.key.platform == "bochs" {
                lanes_then.sort_by(f64::total_cmp);
                lanes_then[0] += row.expected();
            } else {
                alone_then += row.expected();
            }
            if chosen.is_empty() || end(alone_then, &lanes_then) <= seconds {
                (alone, side_by_side) = (alone_then, lanes_then);
                chosen.push(row.key.clone());
            }
        }
        chosen
    }

    /// Records a run in the current update.
    pub fn record(&mut self, key: &Key, passed: bool, seconds: f64, date: &str, sources: &str) {
        let update = self.updates;
        for row in self.rows.iter_mut().filter(|row| row.key == *key) {
            let went = if passed { Went::Passed } else { Went::Failed };
            // At least one second: a row that takes less still counts in the plan.
            let seconds = seconds.round().max(1.0);
            let (key, date, sources) = (row.key.clone(), date.to_owned(), sources.to_owned());
            *row = Row { key, went, seconds, update, date, sources };
        }
    }
}

fn row(line: &str) -> Result<Row> {
    let cells: Vec<&str> = line.split_whitespace().collect();
    let [scenario, platform, variant, went, seconds, update, date, sources] = cells.as_slice() else {
        bail!("{} words, expected 8", cells.len());
    };
    let went = [Went::Never, Went::Passed, Went::Failed].into_iter().find(|w| w.word() == *went);
    let seconds: f64 = seconds.parse().context("its seconds")?;
    ensure!(seconds >= 0.0, "{seconds} seconds");
    Ok(Row {
        key: Key { scenario: (*scenario).into(), platform: (*platform).into(), variant: (*variant).into() },
        went: went.context("it neither passed nor failed, nor has it never run")?,
        seconds,
        update: update.parse().context("its update")?,
        date: (*date).into(),
        sources: (*sources).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scenario: &str, platform: &str) -> Key {
        Key { scenario: scenario.into(), platform: platform.into(), variant: "usual".into() }
    }

    /// A rotation with rows of: scenario, platform, result, seconds, update.
    fn rotation(rows: &[(&str, &str, Went, f64, u64)]) -> Rotation {
        let row = |&(name, platform, went, seconds, update): &(&str, &str, Went, f64, u64)| Row {
            went,
            seconds,
            ..Row::new(key(name, platform), update)
        };
        Rotation { updates: 20, rows: rows.iter().map(row).collect() }
    }

    fn chosen(rotation: &Rotation, seconds: f64, lanes: usize) -> Vec<String> {
        rotation.choose(seconds, lanes).into_iter().map(|key| key.scenario).collect()
    }

    #[test]
    fn what_failed_comes_first_then_the_oldest_and_of_these_what_never_ran() {
        let rotation = rotation(&[
            ("new", "bochs", Went::Passed, 10.0, 19),
            ("old", "bochs", Went::Passed, 10.0, 12),
            ("never", "bochs", Went::Never, 0.0, 14),
            ("with-it", "bochs", Went::Passed, 10.0, 14),
            ("failed", "bochs", Went::Failed, 10.0, 20),
        ]);
        assert_eq!(chosen(&rotation, 2000.0, 1), ["failed", "old", "never", "with-it", "new"]);
    }

    #[test]
    fn one_that_never_ran_may_take_as_long_as_the_longest() {
        let rows = [("a", "bochs"), ("b", "bochs"), ("c", "qemu"), ("d", "qemu")];
        let rotation = rotation(&rows.map(|(name, platform)| (name, platform, Went::Never, 0.0, 1)));
        assert_eq!(chosen(&rotation, 720.0, 2), ["a", "b"]);
        assert_eq!(chosen(&rotation, 720.0, 1), ["a"]);
        assert_eq!(chosen(&rotation, 900.0, 2), ["a", "b", "c"]);
    }

    #[test]
    fn rows_are_chosen_until_the_time_is_used() {
        let rows = ["a", "b", "c", "d", "e"].map(|name| (name, "bochs", Went::Passed, 100.0, 1));
        let rotation = rotation(&rows);
        assert_eq!(chosen(&rotation, 250.0, 1), ["a", "b"]);
        // With two lanes, two rows run side by side.
        assert_eq!(chosen(&rotation, 250.0, 2), ["a", "b", "c", "d"]);
    }

    #[test]
    fn one_on_qemu_runs_alone() {
        let rotation = rotation(&[
            ("a", "qemu", Went::Passed, 100.0, 1),
            ("b", "bochs", Went::Passed, 100.0, 2),
            ("c", "bochs", Went::Passed, 100.0, 3),
            ("d", "qemu", Went::Passed, 100.0, 4),
        ]);
        assert_eq!(chosen(&rotation, 200.0, 2), ["a", "b", "c"]);
    }

    #[test]
    fn one_that_is_too_long_runs_when_its_turn_comes_and_a_shorter_one_takes_the_place_of_one_that_does_not_fit() {
        let rotation = rotation(&[
            ("long", "bochs", Went::Passed, 900.0, 1),
            ("short", "bochs", Went::Passed, 100.0, 2),
            ("longer", "bochs", Went::Passed, 700.0, 3),
            ("shorter", "bochs", Went::Passed, 50.0, 4),
        ]);
        assert_eq!(chosen(&rotation, 720.0, 1), ["long"]);
        let rotation = Rotation { rows: rotation.rows[1..].to_vec(), ..rotation };
        assert_eq!(chosen(&rotation, 720.0, 1), ["short", "shorter"]);
    }

    #[test]
    fn a_run_is_recorded_and_the_text_is_read_as_it_was_written() {
        let mut rotation = rotation(&[("a", "qemu", Went::Passed, 100.0, 1), ("b", "bochs", Went::Never, 0.0, 2)]);
        rotation.updates += 1;
        rotation.record(&key("b", "bochs"), false, 61.4, "2026-11-24", "0123456789ab");
        let again = Rotation::parse(&rotation.text()).unwrap();
        assert_eq!(again, rotation);
        assert_eq!((again.rows[1].went, again.rows[1].seconds, again.age(&again.rows[1])), (Went::Failed, 61.0, 0));
        assert!(Rotation::parse("updates x\n").is_err());
        assert!(Rotation::parse("updates 1\na bochs usual good 1 1 - -\n").is_err());
    }

    #[test]
    fn new_scenarios_get_a_row_and_those_that_are_gone_lose_theirs() {
        let mut rotation =
            rotation(&[("gone", "bochs", Went::Passed, 1.0, 1), ("kept", "bochs", Went::Passed, 1.0, 3)]);
        rotation.complete(&[key("new", "bochs"), key("kept", "bochs")]);
        let rows: Vec<_> = rotation.rows.iter().map(|row| (row.key.scenario.as_str(), row.update)).collect();
        assert_eq!(rows, [("new", 20), ("kept", 3)]);
    }

    #[test]
    fn a_row_is_too_old_after_forty_updates() {
        let rows = [("a", "qemu", Went::Passed, 1.0, 10), ("b", "qemu", Went::Passed, 1.0, 9)];
        let rotation = Rotation { updates: 50, ..rotation(&rows) };
        assert_eq!(rotation.too_old().map(|row| row.key.scenario.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
