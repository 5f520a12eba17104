//! The log: events of the machine, lines of guests' consoles, and what became of the connection. The newest is the last.

use super::nothing::gone;
use crate::sheet::text::wrap;
use crate::sheet::{Sheet, Table, Value, number, words};
use crate::state::State;

/// Characters of a line of an entry that is shown whole.
const LINE: usize = 78;

/// The sheet.
pub fn sheet(state: &State) -> Sheet {
    let mut main = Table::new(
        "log",
        "Log",
        &[number("seconds", "time", 0), words("kind", "what", 0), words("guest", "guest", 0), words("text", "text", 0)],
    );
    for entry in state.log() {
        main.row(
            entry.number.to_string(),
            entry.tone,
            vec![
                Value::Text(format!("{:.1}", entry.at.as_secs_f64())),
                Value::Text(entry.kind.into()),
                Value::Text(entry.guest.clone()),
                Value::Text(entry.text.clone()),
            ],
        );
    }
    Sheet { key: "log", facts: Vec::new(), main, more: Vec::new() }
}

/// One entry, whole.
pub fn detail(state: &State, id: &str) -> Sheet {
    let Some(entry) = state.log().into_iter().find(|entry| entry.number.to_string() == id) else { return gone("log") };
    let title = format!("{} at {:.3} s, {}", entry.kind, entry.at.as_secs_f64(), entry.guest);
    let mut main = Table::new("lines", title.trim_end_matches(", "), &[words("text", "text", 0)]);
    for (n, line) in wrap(&entry.text, LINE).into_iter().enumerate() {
        main.row(n.to_string(), entry.tone, vec![Value::Text(line)]);
    }
    Sheet { key: "log", facts: Vec::new(), main, more: Vec::new() }
}
