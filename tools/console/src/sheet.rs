//! What a view shows, apart from how: facts, one main table whose rows can be chosen, and further tables.

pub mod json;
pub mod text;

use std::cmp::Ordering;

use crate::clean::{NAME, clean};

/// The value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text. [`Value::text`] makes it.
    Text(String),
    /// A number of things.
    Count(u64),
    /// Bytes.
    Bytes(u64),
    /// A number that may not be known, such as a rate in things a second, or cycles.
    Number(Option<f64>),
    /// A part of a whole, from 0 to 1, that may not be known.
    Share(Option<f64>),
    /// The same as a bar of ten characters.
    Bar(Option<f64>),
}

impl Value {
    /// A text that came from the machine, made safe.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(clean(text, NAME))
    }

    /// As it is shown. `-` stands for what is not known.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) if *count < 10_000_000 => count.to_string(),
            Self::Count(count) => scaled(*count as f64),
            Self::Bytes(bytes) => binary(*bytes),
            Self::Number(number) => number.map_or_else(unknown, scaled),
            Self::Share(share) => share.map_or_else(unknown, |share| format!("{:.1} %", share * 100.0)),
            Self::Bar(share) => share.map_or_else(unknown, bar),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Count(count) | Self::Bytes(count) => Some(*count as f64),
            Self::Number(number) | Self::Share(number) | Self::Bar(number) => *number,
        }
    }

    /// Orders two values of a column: texts by their letters, numbers by size, what is not known first.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => self.number().unwrap_or(f64::MIN).total_cmp(&other.number().unwrap_or(f64::MIN)),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<Option<f64>> for Value {
    fn from(number: Option<f64>) -> Self {
        Self::Number(number)
    }
}

fn unknown() -> String {
    "-".into()
}

/// A number in at most seven characters: three or more digits, and a decimal unit.
#[must_use]
pub fn scaled(number: f64) -> String {
    if !number.is_finite() {
        return unknown();
    }
    if number < 99.95 {
        let text = format!("{number:.1}");
        return text.strip_suffix(".0").map_or_else(|| text.clone(), String::from);
    }
    if number < 100_000.0 {
        return format!("{number:.0}");
    }
    let mut number = number;
    for unit in ["k", "M", "G", "T", "P", "E"] {
        number /= 1000.0;
        if number < 9999.5 {
            return format!("{number:.*}{unit}", usize::from(number < 999.95));
        }
    }
    format!("{number:.1e}")
}

/// Bytes with a binary unit.
#[must_use]
pub fn binary(bytes: u64) -> String {
    let mut number = bytes as f64;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    for unit in ["KiB", "MiB", "GiB", "TiB"] {
        number /= 1024.0;
        if number < 1023.95 {
            let text = format!("{number:.1}");
            return format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text));
        }
    }
    format!("{number:.0} TiB")
}

/// Characters of a bar.
const BAR: usize = 10;

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let full = full.min(BAR);
    format!("{}{}", "#".repeat(full), ".".repeat(BAR.saturating_sub(full)))
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in JSON.
    pub key: &'static str,
    /// Name on the screen.
    pub title: &'static str,
    /// Whether numbers or texts stand in it: texts are left-aligned.
    pub is_text: bool,
    /// Where there is no room for all columns, those with the highest number are left out. Columns with 0 stay.
    pub rank: u8,
}

/// A column of numbers.
#[must_use]
pub const fn number(key: &'static str, title: &'static str, rank: u8) -> Column {
    Column { key, title, is_text: false, rank }
}

/// A column of texts.
#[must_use]
pub const fn words(key: &'static str, title: &'static str, rank: u8) -> Column {
    Column { key, title, is_text: true, rank }
}

/// How a row is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As usual.
    #[default]
    Plain,
    /// Nothing happens there.
    Quiet,
    /// Somebody should look.
    Warning,
    /// Something is wrong.
    Bad,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What tells it from other rows, also in later readings.
    pub id: String,
    /// How it is meant.
    pub tone: Tone,
    /// Its cells, in the order of the columns.
    pub cells: Vec<Value>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Name in JSON.
    pub key: &'static str,
    /// What it shows.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// Makes an empty table.
    #[must_use]
    pub fn new(key: &'static str, title: impl Into<String>, columns: &[Column]) -> Self {
        Self { key, title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, id: impl Into<String>, tone: Tone, cells: Vec<Value>) {
        self.rows.push(Row { id: id.into(), tone, cells });
    }

    /// Leaves only the rows with a text that contains `wanted`, whatever the case of letters.
    pub fn filter(&mut self, wanted: &str) {
        let wanted = wanted.to_lowercase();
        self.rows.retain(|row| {
            row.cells.iter().any(|cell| matches!(cell, Value::Text(text) if text.to_lowercase().contains(&wanted)))
        });
    }

    /// Sorts the rows by a column: numbers from the largest, texts from the first. `reverse`: the other way round. Rows with equal
    /// values keep their order.
    pub fn sort(&mut self, column: usize, reverse: bool) {
        let is_text = self.columns.get(column).is_some_and(|column| column.is_text);
        self.rows.sort_by(|a, b| {
            let (Some(a), Some(b)) = (a.cells.get(column), b.cells.get(column)) else { return Ordering::Equal };
            let order = a.order(b);
            if is_text == reverse { order.reverse() } else { order }
        });
    }
}

/// What a view shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// The view's name in JSON.
    pub key: &'static str,
    /// Sentences above the tables.
    pub facts: Vec<String>,
    /// The table whose rows can be chosen and sorted.
    pub main: Table,
    /// Further tables.
    pub more: Vec<Table>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_three_digits() {
        for (number, shown) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (99.94, "99.9"),
            (99.96, "100"),
            (99_999.0, "99999"),
            (123_456.0, "123.5k"),
            (9_999_400.0, "9999k"),
            (12_345_678.0, "12.3M"),
            (1.8e19, "18.0E"),
            (1e30, "1.0e12"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(scaled(number), shown, "{number}");
            assert!(shown.len() <= 7);
        }
        assert_eq!(binary(1023), "1023 B");
        assert_eq!(binary(192 << 20), "192 MiB");
        assert_eq!(binary(u64::MAX), "16777216 TiB");
        assert_eq!(Value::Bar(Some(0.26)).shown(), "###.......");
        assert_eq!(Value::Share(Some(7.0)).shown(), "700.0 %");
    }

    #[test]
    fn numbers_sort_from_the_largest_texts_from_the_first_and_unknown_is_least() {
        let mut table = Table::new("t", "t", &[words("name", "name", 0), number("n", "n", 0)]);
        for (name, n) in [("b", Some(1.0)), ("a", None), ("c", Some(3.0))] {
            table.row(name, Tone::Plain, vec![name.into(), n.into()]);
        }
        let order = |table: &Table| table.rows.iter().map(|row| row.id.clone()).collect::<String>();
        table.sort(1, false);
        assert_eq!(order(&table), "cba");
        table.sort(1, true);
        assert_eq!(order(&table), "abc");
        table.sort(0, false);
        assert_eq!(order(&table), "abc");
        table.sort(9, false);
        assert_eq!(order(&table), "abc");
        table.filter("B");
        assert_eq!(order(&table), "b");
    }
}
