//! The command `trace`: what it may be told, what it shows, and the line of COM2 that carries a piece of a trace.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};
use trace::Classes;
use trace::sampling::MOST_ONE_OF;

use crate::argument::{Argument, Kind, words};
use crate::capture::CapturedPort;
use crate::fold::sentence_line;
use crate::no_memory::sentence;
use crate::shown::{Joined, Shortened};
use crate::table::layout::Cell::{Number, Text as Word};
use crate::table::layout::table;
use crate::unknown::unknown;
use crate::{Permissions, Text};

/// The step, as an argument of `trace`.
pub(crate) const STEP: Argument = Argument {
    member: Some("step"),
    shown: "on|off|show|save|save-without-rips",
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
        /// The same without what needs the permission `profile`: records of exits have the RIP 0, and no block says where a
        /// guest's kernel is.
        SaveWithoutRips = "save-without-rips";
    }
}

impl TraceStep {
    /// The permission that it needs. `classes`: those that are to be switched on for it.
    #[must_use]
    pub const fn permission(self, classes: &str) -> Permissions {
        match self {
            Self::Show => Permissions::VIEW,
            Self::SaveWithoutRips if classes.is_empty() => Permissions::VIEW,
            Self::SaveWithoutRips | Self::Save | Self::On | Self::Off => Permissions::PROFILE,
        }
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
    names.split(',').try_fold(Classes::empty(), |all, name| Ok(all | class(name)?))
}

fn class(name: &str) -> Result<Classes, Text> {
    match Classes::named(name) {
        Some(class) if Classes::WRITTEN.contains(class) => Ok(class),
        Some(Classes::CAPTURES) => Err("`captures` is on while there is a filter: see `capture`".into()),
        Some(Classes::SAMPLED) => Err("exits are sampled by `1/N`, for a record of one of N".into()),
        _ => Err(unknown("class", name, Classes::WRITTEN.names())),
    }
}

/// What `trace on` is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The classes to switch on. [`Classes::SAMPLED`] is among them if not every exit has a record.
    pub classes: Classes,
    /// There is a record for so many exits of a vCPU for the same reason, from 1 to [`MOST_ONE_OF`].
    pub exits_one_of: u32,
}

/// Reads what `trace on` is told: names of classes, and `1/N` for a record of one of N exits, with commas between them. No name:
/// [`DEFAULT_CLASSES`].
///
/// # Errors
/// As for [`classes`]; `1/N` is there twice, has another number, or `exits` are not wanted.
pub fn wanted(words: &str) -> Result<Wanted, Text> {
    let (mut named, mut one_of) = (None, None);
    for word in words.split(',').filter(|_| !words.is_empty()) {
        match word.strip_prefix("1/") {
            None => named = Some(named.unwrap_or_default() | class(word)?),
            Some(_) if one_of.is_some() => return Err("there is one `1/N`, for all exits".into()),
            Some(number) => {
                let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
                let number = number.parse().ok().filter(|number| is_number && (1..=MOST_ONE_OF).contains(number));
                one_of = Some(number.ok_or_else(|| {
                    let word = Shortened(word);
                    sentence(format_args!("`{word}`: expected a number from 1 to {MOST_ONE_OF}"))
                })?);
            }
        }
    }
    let classes = named.unwrap_or(DEFAULT_CLASSES);
    match one_of {
        Some(exits_one_of) if !classes.contains(Classes::EXITS) => {
            Err(sentence(format_args!("`1/{exits_one_of}` is of exits: add the class `exits`")))
        }
        Some(exits_one_of) if exits_one_of > 1 => Ok(Wanted { classes: classes | Classes::SAMPLED, exits_one_of }),
        _ => Ok(Wanted { classes, exits_one_of: 1 }),
    }
}

/// The state of the trace, in the answer to `trace show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceState {
    /// The `id` of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Names of the classes that are on.
    pub classes: Vec<Text>,
    /// There is a record for so many exits of a vCPU for the same reason. `None`: for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exits_one_of: Option<u32>,
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
    if let Some(one_of) = state.exits_one_of {
        let each = "of a vCPU for the same reason has a record";
        sentence_line(out, format_args!("one of {one_of} exits {each}"))?;
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
