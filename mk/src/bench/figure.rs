//! A figure of a benchmark.

/// A number, and its aim.
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The largest value that is wanted.
    pub aim: Option<f64>,
}
