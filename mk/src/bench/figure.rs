//! A figure of a benchmark.

/// A number, and what it should be.
pub struct Figure {
    /// What it is a number of.
    pub name: String,
    /// How much it is.
    pub value: f64,
    /// In what.
    pub unit: &'static str,
    /// It should be no more than this.
    pub aim: Option<f64>,
}
