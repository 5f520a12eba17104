//! The command `trace`: what it may be told, what it shows, and the line of COM2 that carries a piece of a trace.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};
use trace::Classes;

use crate::Text;
use crate::argument::{Argument, Kind, words};
use crate::capture::CapturedPort;
use crate::fold::sentence_line;
use crate::shown::Joined;
use crate::table::layout::Cell::{Number, Text as Word};
use crate::table::layout::table;
use crate::unknown::unknown;

/// The step, as an argument of `trace`.
pub(crate) const STEP: Argument = Argument {
    member: Some("step"),
    shown: "on|off|show|save",
    needed: true,
    kind: Kind::Choice { what: "step of the trace", words: &TraceStep::NAMES },
};

words! {
    /// What is done with the trace.
    TraceStep or Show {
        /// The cores write records of the classes that are named.
        On = "on";
        /// They write none.
        Off = "off";
        /// Shows which classes are on, and how much each core has written and lost.
        Show = "show";
        /// Sends the records on COM2, until the trace is off and everything is sent.
        Save = "save";
    }
}

/// The classes of `trace on` without a name.
pub const DEFAULT_CLASSES: Classes =
    Classes::EXITS.union(Classes::INTERRUPTS).union(Classes::TURNS).union(Classes::VISITS);

/// Reads names of classes with commas between them. No name: [`DEFAULT_CLASSES`].
///
/// # Errors
/// There is no such class, or this version writes no records of it; the text names those that there are.
pub fn classes(names: &str) -> Result<Classes, Text> {
    if names.is_empty() {
        return Ok(DEFAULT_CLASSES);
    }
    names.split(',').try_fold(Classes::empty(), |all, name| {
        if Classes::named(name) == Some(Classes::CAPTURES) {
            return Err("`captures` is on while there is a filter: see `capture`".into());
        }
        let class = Classes::named(name).filter(|class| Classes::WRITTEN.contains(*class));
        class.map(|class| all | class).ok_or_else(|| unknown("class", name, Classes::WRITTEN.names()))
    })
}

/// The state of the trace, in the answer to `trace show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceState {
    /// The `id` of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Names of the classes that are on.
    pub classes: Vec<Text>,
    /// Whether a core drops new records when its ring is full, instead of the oldest.
    pub stop: bool,
    /// Whether records are being sent, on COM2 or to the management guest.
    pub saving: bool,
    /// The cores that have a ring.
    pub cores: Vec<TracedCore>,
    /// The ports that are captured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<CapturedPort>,
}

/// What a core has written since `trace on`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCore {
    /// Its number.
    pub core: u64,
    /// What it does: `control`, `engine`, or the name of its guest.
    pub user: String,
    /// Records for which its ring has room.
    pub capacity: u64,
    /// Records that were to be written.
    pub records: u64,
    /// Those of them that nobody can read any more, and that were not sent.
    pub lost: u64,
}

/// Writes the table of `trace show`.
///
/// # Errors
/// `out` fails.
pub fn show(state: &TraceState, out: &mut dyn fmt::Write) -> fmt::Result {
    if state.classes.is_empty() {
        out.write_str("the trace is off\n")?;
    } else {
        let full = if state.stop { "new records are dropped" } else { "the oldest records are dropped" };
        let classes = Joined(state.classes.iter());
        sentence_line(out, format_args!("on: {classes}; when a ring is full, {full}"))?;
    }
    if state.saving {
        out.write_str("records are being sent\n")?;
    }
    for CapturedPort { guest, uplink, filter, frames } in &state.captures {
        let what = if *uplink { "uplink " } else { "" };
        sentence_line(out, format_args!("captured of {what}{guest}: {frames} frames by {filter}"))?;
    }
    if state.cores.is_empty() {
        return out.write_str("no core has a ring: `memory` of [trace] is 0K\n");
    }
    let rows = state.cores.iter().map(|TracedCore { core, user, capacity, records, lost }| {
        [Number(*core), Word(user), Number(*capacity), Number(*records), Number(*lost)]
    });
    table(["core", "user", "room", "records", "lost"], "rlrrr", 2, rows, out)
}

/// The pieces of the line of COM2 that carries a piece of a trace, in base64. They need no memory. [`crate::Event::Trace`] is
/// the same line as it is read.
#[must_use]
pub const fn trace_line(base64: &str) -> [&str; 3] {
    ["{\"event\":\"trace\",\"data\":\"", base64, "\"}\n"]
}

/// The line of COM2 after the last piece of a trace.
pub const TRACE_END: &str = "{\"event\":\"trace\",\"data\":\"\",\"end\":true}\n";

#[cfg(test)]
mod tests;
