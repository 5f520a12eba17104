//! The numbers that a scenario reports, each with its bound.

use std::fmt;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// One reported number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What was counted, with its unit.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The bound, in words. `None`: the number is only reported.
    pub bound: Option<String>,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.value)?;
        if let Some(bound) = &self.bound {
            write!(f, " ({bound})")?;
        }
        Ok(())
    }
}

/// The numbers of a scenario so far.
#[derive(Debug, Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Reports a number without a bound.
    pub fn note(&mut self, name: &str, value: impl IntoFigure) {
        self.0.push(Figure { name: name.to_owned(), value: value.into_figure(), bound: None });
    }

    /// Reports a number that must not be below `minimum`.
    pub fn at_least(&mut self, name: &str, value: impl IntoFigure, minimum: impl IntoFigure) -> Result<()> {
        let (value, minimum) = (value.into_figure(), minimum.into_figure());
        self.0.push(Figure { name: name.to_owned(), value, bound: Some(format!("at least {minimum}")) });
        ensure!(value >= minimum, "{name}: {value}, expected at least {minimum}");
        Ok(())
    }

    /// Reports a number that must be exactly `expected`.
    pub fn exactly(&mut self, name: &str, value: impl IntoFigure, expected: impl IntoFigure) -> Result<()> {
        let (value, expected) = (value.into_figure(), expected.into_figure());
        self.0.push(Figure { name: name.to_owned(), value, bound: Some(format!("exactly {expected}")) });
        ensure!((value - expected).abs() < 0.5, "{name}: {value}, expected {expected}");
        Ok(())
    }

    /// Reports a number that must not be above `maximum`.
    pub fn at_most(&mut self, name: &str, value: impl IntoFigure, maximum: impl IntoFigure) -> Result<()> {
        let (value, maximum) = (value.into_figure(), maximum.into_figure());
        self.0.push(Figure { name: name.to_owned(), value, bound: Some(format!("at most {maximum}")) });
        ensure!(value <= maximum, "{name}: {value}, expected at most {maximum}");
        Ok(())
    }

    /// Reports whether two results have the same checksum of a file. They must.
    pub fn same_file(&mut self, name: &str, sent: &Value, received: &Value) -> Result<()> {
        let same = sent["sha256"] == received["sha256"] && sent["sha256"].as_str().is_some_and(|sum| sum.len() == 64);
        self.exactly(name, usize::from(same), 1)
    }

    /// All numbers, in the order of the reports.
    pub fn all(&self) -> &[Figure] {
        &self.0
    }

    /// The count of numbers with a bound.
    pub fn bounded(&self) -> usize {
        self.0.iter().filter(|figure| figure.bound.is_some()).count()
    }

    /// The numbers as JSON, for `--json`.
    pub fn to_json(&self) -> Value {
        self.0.iter().map(|figure| (figure.name.clone(), json!(figure.value))).collect::<serde_json::Map<_, _>>().into()
    }
}

/// A number that can be reported.
pub trait IntoFigure {
    /// The number's value. Counters beyond 2^53 would lose their last digits; no scenario reaches that.
    fn into_figure(self) -> f64;
}

impl IntoFigure for f64 {
    fn into_figure(self) -> f64 {
        self
    }
}

impl IntoFigure for u64 {
    fn into_figure(self) -> f64 {
        self as f64
    }
}

impl IntoFigure for usize {
    fn into_figure(self) -> f64 {
        self as f64
    }
}

impl IntoFigure for i32 {
    fn into_figure(self) -> f64 {
        f64::from(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_its_bound_is_an_error_that_names_both() {
        let mut figures = Figures::default();
        let error = figures.at_least("pings", 999_u64, 1000).unwrap_err();
        assert_eq!(error.to_string(), "pings: 999, expected at least 1000");
        assert!(figures.exactly("messages", 9_usize, 10).is_err());
        assert!(figures.at_most("exits", 11_u64, 10).is_err());
        assert_eq!(figures.bounded(), 3);
    }

    #[test]
    fn a_noted_number_does_not_count_as_checked() {
        let mut figures = Figures::default();
        figures.note("milliseconds", 5_u64);
        assert_eq!(figures.bounded(), 0);
        assert_eq!(figures.to_json()["milliseconds"], 5.0);
    }
}
