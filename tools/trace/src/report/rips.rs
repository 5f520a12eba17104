//! Where exits came from: the guest's instruction pointers by guest and reason.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Kind;

use super::row::{Row, rows};
use crate::model::{Event, Trace};
use crate::resolve::Resolver;
use crate::statistics::Times;

/// A place in a guest that exits for a reason.
#[derive(Debug, Serialize)]
pub struct Place {
    /// The guest.
    pub guest: String,
    /// The reason.
    pub reason: String,
    /// The address of the instruction.
    pub rip: u64,
    /// Its function and the distance from the function's start. None: no symbols, or in none of theirs.
    pub symbol: Option<String>,
    /// The figures. Shares are of the guest's exits for this reason.
    #[serde(flatten)]
    pub row: Row,
}

/// The places that cost the most cycles, at most `most` a guest and reason.
pub(super) fn of(trace: &Trace, resolver: &Resolver, most: usize) -> Vec<Place> {
    let mut all: BTreeMap<(u8, u8), BTreeMap<u64, Times>> = BTreeMap::new();
    let mut symbols: BTreeMap<(u8, u64), String> = BTreeMap::new();
    for event @ Event { record, .. } in &trace.events {
        if record.known_kind() != Some(Kind::Exit) {
            continue;
        }
        all.entry((record.guest, record.code)).or_default().entry(record.a).or_default().add(record.span);
        if let Some((name, distance)) = resolver.function(event) {
            symbols.entry((record.guest, record.a)).or_insert_with(|| format!("{name}+{distance:#x}"));
        }
    }
    let mut places = Vec::new();
    for ((guest, code), times) in all {
        places.extend(rows(times).into_iter().take(most).map(|(rip, row)| Place {
            guest: trace.names.guest(guest),
            reason: trace.names.reason(code),
            rip,
            symbol: symbols.get(&(guest, rip)).cloned(),
            row,
        }));
    }
    places
}
