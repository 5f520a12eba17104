//! The sections of the page: which numbers of the results make which chart, and what the papers had there.

mod crowd;
mod exits;
mod load;

use serde_json::Value;

use super::chart::Section;

/// The sections, also of parts that were not run. `results`: an object of the parts.
pub fn sections(results: &Value) -> Vec<Section> {
    vec![
        exits::section(&results["exits"]),
        crowd::scaling(&results["scaling"]),
        crowd::mixed(&results["mixed"]),
        load::section(&results["load"]),
    ]
}
