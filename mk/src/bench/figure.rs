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

impl Figure {
    /// Whether it is within its aim, if it has one.
    pub fn is_met(&self) -> bool {
        self.aim.is_none_or(|aim| self.value <= aim)
    }
}
