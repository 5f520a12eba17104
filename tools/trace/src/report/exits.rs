//! Exits by guest and reason.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Kind;

use super::row::{Row, rows};
use crate::model::Trace;
use crate::statistics::Times;

/// A guest's exits.
#[derive(Debug, Serialize)]
pub struct Guest {
    /// Its name.
    pub guest: String,
    /// All of them.
    pub exits: u64,
    /// Cycles of all of them in the host.
    pub cycles: u64,
    /// By reason: what took the most cycles first.
    pub reasons: Vec<Reason>,
}

/// A guest's exits for one reason.
#[derive(Debug, Serialize)]
pub struct Reason {
    /// Its name.
    pub reason: String,
    /// The figures.
    #[serde(flatten)]
    pub row: Row,
}

/// The guests of a trace, by number. A guest without an exit is left out.
pub(super) fn of(trace: &Trace) -> Vec<Guest> {
    let mut all: BTreeMap<u8, BTreeMap<u8, Times>> = BTreeMap::new();
    for event in &trace.events {
        let record = &event.record;
        if record.known_kind() == Some(Kind::Exit) {
            all.entry(record.guest).or_default().entry(record.code).or_default().add(record.span);
        }
    }
    all.into_iter()
        .map(|(guest, reasons)| {
            let reasons: Vec<Reason> =
                rows(reasons).into_iter().map(|(code, row)| Reason { reason: trace.names.reason(code), row }).collect();
            let sum =
                |of: fn(&Row) -> u64| reasons.iter().fold(0_u64, |sum, reason| sum.saturating_add(of(&reason.row)));
            Guest {
                guest: trace.names.guest(guest),
                exits: sum(|row| row.samples),
                cycles: sum(|row| row.cycles),
                reasons,
            }
        })
        .collect()
}
