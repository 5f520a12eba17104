//! A chart of `cargo mk bench paper`: numbers by category and series, what they are, and what a paper had.

use std::collections::BTreeMap;

use serde_json::Value;

/// How the numbers of a chart were got, and so how far they can be trusted on an emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Counts that do not depend on the speed of anything.
    Counts,
    /// Counts that depend on how fast the guests are against the engine.
    Pace,
    /// Ratios of rates within one run.
    Ratio,
    /// Rates by the platform's clock.
    Time,
}

impl By {
    /// What it means on a platform, in sentences.
    pub fn meaning(self, platform: &str) -> &'static str {
        match (self, platform) {
            (Self::Counts, _) => "By counts. They do not depend on the speed of the platform.",
            (Self::Pace, "qemu") => {
                "By counts, which are exact. But they depend on how fast the guests are against the engine, and on QEMU that is \
                 the development machine's scheduler and the translator. Only the direction says something."
            }
            (Self::Ratio, "qemu") => {
                "A ratio of rates within one run. On QEMU the processors share those of the development machine, so it is noise as \
                 a figure of speed."
            }
            (Self::Time, "qemu") => "By QEMU's clock. The time of an emulator is noise; the order of magnitude only.",
            (Self::Pace | Self::Ratio | Self::Time, "bochs") => {
                "Bochs lets each processor make about one instruction a tick. So this is in instructions: there are neither caches nor \
                 memory latencies in it."
            }
            (Self::Pace, _) => "By counts. They depend on how fast the guests are against the engine.",
            (Self::Ratio, _) => "A ratio of rates within one run, in a nested virtual machine.",
            (Self::Time, _) => "By the clock of a nested virtual machine.",
        }
    }
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bar for each category. The series lie on one another.
    Stacked,
    /// A bar for each category and series.
    Grouped,
    /// A line for each series.
    Lines,
}

/// What a paper had.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// The paper, and its figure or section.
    pub place: &'static str,
    /// The values there.
    pub had: &'static str,
    /// The hardware there.
    pub hardware: &'static str,
}

/// The numbers of one series, one for each category. `None`: not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its numbers.
    pub values: Vec<Option<f64>>,
}

/// A chart.
#[derive(Debug)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// How the numbers were got.
    pub by: By,
    /// What to know of it besides.
    pub note: &'static str,
    /// What a paper had, if one had it.
    pub paper: Paper,
    /// How it is drawn.
    pub kind: Kind,
    /// What the categories are.
    pub across: &'static str,
    /// The names of the categories.
    pub labels: Vec<String>,
    /// The series. None: it was not run.
    pub series: Vec<Series>,
}

/// Charts of one part of the benchmark, which ran on one platform.
#[derive(Debug)]
pub struct Section {
    /// Its title.
    pub title: &'static str,
    /// What ran.
    pub about: &'static str,
    /// Where it ran. `None`: it was not run.
    pub platform: Option<String>,
    /// Whether it ran with small amounts.
    pub quick: bool,
    /// Its charts.
    pub charts: Vec<Chart>,
}

/// Categories and series of numbers, in the order in which they were first met.
#[derive(Debug, Default)]
pub struct Table {
    labels: Vec<String>,
    names: Vec<String>,
    values: BTreeMap<(usize, usize), f64>,
}

impl Table {
    /// Makes one of rows: `pick` returns the category, the series and the number of a row. A row without a number is left out.
    pub fn of<'a>(
        rows: impl IntoIterator<Item = &'a Value>,
        pick: impl Fn(&Value) -> (String, String, Option<f64>),
    ) -> Self {
        let mut table = Self::default();
        for row in rows {
            let (label, name, value) = pick(row);
            table.add(label, name, value);
        }
        table
    }

    /// Adds a number. A category is kept even without a number.
    pub fn add(&mut self, label: String, name: String, value: Option<f64>) {
        let label = place(&mut self.labels, label);
        if let Some(value) = value {
            let name = place(&mut self.names, name);
            self.values.insert((name, label), value);
        }
    }

    /// Its categories, and its series.
    pub fn split(self) -> (Vec<String>, Vec<Series>) {
        let Self { labels, names, values } = self;
        let of = |name: usize| (0..labels.len()).map(|label| values.get(&(name, label)).copied()).collect();
        let series = names.into_iter().enumerate().map(|(number, name)| Series { name, values: of(number) }).collect();
        (labels, series)
    }
}

/// The place of a name in a list. It is added if it is not there.
fn place(names: &mut Vec<String>, name: String) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// A text of a row, or an empty one.
pub fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_keeps_the_order_and_the_gaps() {
        let rows = [
            json!({"n": "b", "s": "x", "v": 1}),
            json!({"n": "a", "s": "y", "v": 2.5}),
            json!({"n": "c", "s": "z", "v": null}),
        ];
        let (labels, series) = Table::of(&rows, |row| (text(row, "n"), text(row, "s"), row["v"].as_f64())).split();
        assert_eq!(labels, ["b", "a", "c"]);
        let expected = [
            Series { name: "x".into(), values: vec![Some(1.0), None, None] },
            Series { name: "y".into(), values: vec![None, Some(2.5), None] },
        ];
        assert_eq!(series, expected);
    }
}
