//! The log: events of the machine, lines of guests' consoles, and what became of the connection. The newest is the last.

use crate::sheet::{Sheet, Table, Value, number, words};
use crate::state::State;

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
