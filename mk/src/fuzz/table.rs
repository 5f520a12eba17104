//! The table in `tests/fuzz/README.md`.

use std::fs;

use anyhow::{Context as _, Result};

use super::record::{Record, Records};
use super::target::Target;
use crate::paths;

const BEGIN: &str = "<!-- targets: written by `cargo mk fuzz` -->\n";
const END: &str = "<!-- end of targets -->\n";

/// Writes the table anew.
pub fn write(targets: &[Target], records: &Records) -> Result<()> {
    let path = paths::root().join("tests/fuzz/README.md");
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
    fn a_row_has_the_figures() {
        let record = Record { executions: 5, edges: 3, seconds: 90.0, lines: 9, all_lines: 10, ..Record::default() };
        assert_eq!(row("x", &record), "| x | 1.5 | 0.0 | 5 | 3 | 90 % of 10 | 0 |\n");
        let unknown = Record { all_lines: 0, ..record };
        assert!(row("x", &unknown).contains("not measured"));
    }
}
