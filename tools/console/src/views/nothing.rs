//! Sheets without anything to show.

use crate::sheet::{Sheet, Table, words};

/// The sheet before the first counters.
pub fn yet(view: &'static str) -> Sheet {
    sheet(view, "No counters have come yet.")
}

/// The sheet of a row that is not there any more.
pub fn gone(view: &'static str) -> Sheet {
    sheet(view, "It is not there any more. Esc goes back.")
}

fn sheet(key: &'static str, fact: &str) -> Sheet {
    Sheet { key, facts: vec![fact.into()], main: Table::new("rows", "", &[words("name", "", 0)]), more: Vec::new() }
}
