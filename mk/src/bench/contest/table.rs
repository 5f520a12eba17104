//! Figures next to their aims.

use std::fmt;

use serde_json::{Value, json};

use crate::ui;

/// The aim of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
}

impl Aim {
    fn met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(aim) => value >= aim,
            Self::AtMost(aim) => value <= aim,
        }
    }
}

struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    aim: Aim,
}

/// The figures that were measured, and those that were not.
#[derive(Default)]
pub struct Table {
    notes: Vec<String>,
    rows: Vec<Row>,
    missing: Vec<(String, String)>,
}

impl Table {
    /// Adds a line above the figures.
    pub fn note(&mut self, line: &str) {
        self.notes.push(line.to_owned());
    }

    /// Adds a figure with its aim.
    pub fn figure(&mut self, what: &str, value: f64, unit: &'static str, aim: Aim) {
        self.rows.push(Row { what: what.to_owned(), value, unit, aim });
    }

    /// Adds a figure that was not measured, and why.
    pub fn missing(&mut self, what: &str, why: &str) {
        self.missing.push((what.to_owned(), why.to_owned()));
    }

    /// The table as JSON.
    pub fn to_json(&self) -> Value {
        let row = |row: &Row| {
            let (bound, aim) = match row.aim {
                Aim::AtLeast(aim) => ("at_least", aim),
                Aim::AtMost(aim) => ("at_most", aim),
            };
            json!({ "what": row.what, "value": row.value, "unit": row.unit, bound: aim, "met": row.aim.met(row.value) })
        };
        let missing = |(what, why): &(String, String)| json!({ "what": what, "not_measured": why });
        self.rows.iter().map(row).chain(self.missing.iter().map(missing)).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        writeln!(f)?;
        for Row { what, value, unit, aim } in &self.rows {
            let met = aim.met(*value);
            let (bound, aimed) = match aim {
                Aim::AtLeast(aim) => ("at least", aim),
                Aim::AtMost(aim) => ("at most", aim),
            };
            let word = ui::verdict(if met { "met" } else { "MISSED" }, met);
            writeln!(f, "{what:<62}{value:>9.4} {unit:<8} aim: {bound} {aimed} {word}")?;
        }
        for (what, why) in &self.missing {
            writeln!(f, "{what:<62} not measured: {why}")?;
        }
        let missed = self.rows.iter().filter(|row| !row.aim.met(row.value)).count();
        writeln!(f, "{} aims met, {missed} missed, {} not measured", self.rows.len() - missed, self.missing.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_aims_are_told_apart_and_counted() {
        let mut table = Table::default();
        table.figure("ratio", 1.4, "", Aim::AtLeast(1.35));
        table.figure("packets", 65.0, "packets", Aim::AtMost(64.0));
        table.missing("packed", "no packed rings");
        let text = table.to_string();
        assert!(text.ends_with("1 aims met, 1 missed, 1 not measured\n"), "{text}");
        assert!(text.contains("MISSED"));
        let json = table.to_json();
        assert_eq!((json[0]["met"].as_bool(), json[1]["met"].as_bool()), (Some(true), Some(false)));
        assert_eq!(json[2]["not_measured"], "no packed rings");
    }
}
