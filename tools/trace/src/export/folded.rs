//! Exits as folded stacks, one line a stack: `GUEST;REASON[;FUNCTION] VALUE`. This is what flame graph programs read.

use std::collections::BTreeMap;
use std::io::{self, Write};

use trace::Kind;

use crate::model::{Event, Trace};

/// What a stack's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Exits.
    Samples,
    /// Nanoseconds in the host.
    Time,
}

/// The stacks of all exits with their values, sorted. `symbol`: the function that the guest was in, if its symbols are
/// known; None leaves the level out.
#[must_use]
pub fn stacks(trace: &Trace, weight: Weight, symbol: impl Fn(&Event) -> Option<String>) -> BTreeMap<String, u64> {
    let mut ticks: BTreeMap<String, u64> = BTreeMap::new();
    for event in &trace.events {
        let record = &event.record;
        if record.known_kind() != Some(Kind::Exit) {
            continue;
        }
        let mut stack =
            format!("{};{}", frame(&trace.names.guest(record.guest)), frame(&trace.names.reason(record.code)));
        if let Some(function) = symbol(event) {
            stack.push(';');
            stack.push_str(&frame(&function));
        }
        let more = match weight {
            Weight::Samples => 1,
            Weight::Time => u64::from(record.span),
        };
        let sum = ticks.entry(stack).or_default();
        *sum = sum.saturating_add(more);
    }
    if weight == Weight::Time {
        for sum in ticks.values_mut() {
            *sum = trace.clock.nanoseconds(*sum);
        }
    }
    ticks
}

/// A name as a frame of a stack: `;` separates frames, and a space the value.
fn frame(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_whitespace() { '_' } else { c }).collect()
}

/// Writes the stacks.
///
/// # Errors
/// `out` fails.
pub fn write(stacks: &BTreeMap<String, u64>, out: &mut impl Write) -> io::Result<()> {
    stacks.iter().try_for_each(|(stack, value)| writeln!(out, "{stack} {value}"))
}
