//! Exits as a flame graph: one SVG file that a browser shows, with search and zoom.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context as _, Result, ensure};
use inferno::flamegraph::{self, Options};

use super::folded::Weight;

/// Whether there is nothing to draw: no exit, or none that took any time.
#[must_use]
pub fn is_empty(stacks: &BTreeMap<String, u64>) -> bool {
    stacks.values().all(|&value| value == 0)
}

/// Draws the stacks of [`super::folded::stacks`].
///
/// # Errors
/// There is nothing to draw ([`is_empty`]), or `out` fails.
pub fn write(stacks: &BTreeMap<String, u64>, weight: Weight, out: &mut impl Write) -> Result<()> {
    ensure!(!is_empty(stacks), "there is no exit in this trace to draw");
    let mut options = Options::default();
    options.title = "Exits by guest and reason".to_owned();
    options.count_name = match weight {
        Weight::Samples => "exits",
        Weight::Time => "ns in the host",
    }
    .to_owned();
    // The same names have the same colours in each picture, so that two pictures can be compared.
    options.hash = true;
    let lines: Vec<String> = stacks.iter().map(|(stack, value)| format!("{stack} {value}")).collect();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out).context("cannot draw the flame graph")
}
