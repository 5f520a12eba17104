//! The table in `tests/fuzz/README.md`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::record::{Record, Records};
use super::target::Target;
use crate::paths;

const BEGIN: &str = "<!-- targets: written by `cargo mk fuzz` -->\n";
const END: &str = "<!-- end of targets -->\n";

/// The records that the table has. They are of runs that nobody has the corpora of any more, but for what the repository keeps.
pub fn read() -> Result<Vec<(String, Record)>> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(rows(&text))
}

/// The rows of a table. Those without figures are left out.
fn rows(text: &str) -> Vec<(String, Record)> {
    let table = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map_or("", |(table, _)| table);
    table.lines().filter_map(record).collect()
}

fn record(row: &str) -> Option<(String, Record)> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let [_, name, minutes, quiet, executions, edges, lines, found, _] = cells[..] else { return None };
    let seconds = |minutes: &str| minutes.parse::<f64>().ok().map(|minutes| minutes * 60.0);
    let (lines, all_lines) = lines.split_once(" % of ").map_or(Some((0, 0)), |(percent, all)| {
        let (percent, all): (u64, u64) = (percent.parse().ok()?, all.parse().ok()?);
        // The least number that has this percentage.
        Some(((percent * all).div_ceil(100), all))
    })?;
    let record = Record {
        executions: executions.parse().ok()?,
        edges: edges.parse().ok()?,
        all_edges: 0,
        seconds: seconds(minutes)?,
        quiet: seconds(quiet)?,
        found: found.parse().ok()?,
        lines,
        all_lines,
    };
    Some((name.to_owned(), record))
}

fn path() -> PathBuf {
    paths::root().join("tests/fuzz/README.md")
}

/// Writes the table anew.
pub fn write(targets: &[Target], records: &Records) -> Result<()> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let new = replaced(&text, &of(targets, records))
        .with_context(|| format!("{} has no place for the table", path.display()))?;
    fs::write(&path, new).with_context(|| format!("cannot write {}", path.display()))
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// The table, a row for each target.
pub fn of(targets: &[Target], records: &Records) -> String {
    let mut table = String::from(
        "| target | minutes | since the last new edge | executions | edges | lines under test | open |\n|---|---|---|---|---|---|---|\n",
    );
    for target in targets {
        table += &match records.get(&target.name) {
            Some(record) => row(&target.name, record),
            None => format!("| {} | 0 | | | | | |\n", target.name),
        };
    }
    table
}

fn row(name: &str, r: &Record) -> String {
    let lines = match (r.lines * 100).checked_div(r.all_lines) {
        Some(percent) => format!("{percent} % of {}", r.all_lines),
        None => "not measured".to_owned(),
    };
    format!(
        "| {name} | {:.1} | {:.1} | {} | {} | {lines} | {} |\n",
        r.seconds / 60.0,
        r.quiet / 60.0,
        r.executions,
        r.edges,
        r.found,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_replaced_in_its_place() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replaced(&text, "new\n"), Some(format!("a\n{BEGIN}new\n{END}b\n")));
        assert_eq!(replaced("a", "new"), None);
    }

    #[test]
    fn a_row_is_the_same_when_read_again() {
        let table = "| target | minutes | since the last new edge | executions | edges | lines under test | open |\n\
            |---|---|---|---|---|---|---|\n\
            | a | 12.1 | 0.4 | 51265856 | 577 | 86 % of 495 | 0 |\n\
            | b | 2.0 | 2.0 | 7 | 5 | not measured | 1 |\n\
            | c | 0 | | | | | |\n";
        let read = rows(&format!("before\n{BEGIN}{table}{END}after\n"));
        let written: Vec<_> = read.iter().map(|(name, record)| row(name, record)).collect();
        assert_eq!(written, table.split_inclusive('\n').skip(2).take(2).collect::<Vec<_>>());
        assert_eq!(rows("no table"), []);
    }

    #[test]
    fn a_row_has_the_figures() {
        let record = Record { executions: 5, edges: 3, seconds: 90.0, lines: 9, all_lines: 10, ..Record::default() };
        assert_eq!(row("x", &record), "| x | 1.5 | 0.0 | 5 | 3 | 90 % of 10 | 0 |\n");
        let unknown = Record { all_lines: 0, ..record };
        assert!(row("x", &unknown).contains("not measured"));
    }
}
