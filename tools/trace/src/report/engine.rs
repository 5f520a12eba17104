//! The engines: their turns, and their visits to queues.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Kind;
use trace::record::{BUSY, IDLE, NOTIFIED};

use super::row::{Row, rows};
use crate::model::{Trace, amount, slot};
use crate::statistics::Times;

/// An engine, by its core.
#[derive(Debug, Default, Serialize)]
pub struct Engine {
    /// The core.
    pub core: u32,
    /// Turns that moved requests. None: there are no records of them.
    pub busy_turns: Option<Row>,
    /// Requests that they moved.
    pub requests: u64,
    /// Turns that moved nothing. None: there are no records of them.
    pub idle_turns: Option<Row>,
    /// Visits by queue: what took the most cycles first.
    pub queues: Vec<Queue>,
}

/// Visits to a queue, and completions.
#[derive(Debug, Serialize)]
pub struct Queue {
    /// Its device, with the guest.
    pub device: String,
    /// Its number.
    pub queue: u8,
    /// The figures of the visits. Shares are of the engine's visits.
    #[serde(flatten)]
    pub row: Row,
    /// Requests that were taken.
    pub requests: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Times that completed requests were published.
    pub completions: u64,
    /// Those of which the guest was told.
    pub notified: u64,
}

/// Sums of one queue.
#[derive(Clone, Copy, Default)]
struct Sums {
    requests: u64,
    bytes: u64,
    completions: u64,
    notified: u64,
}

/// The engines of a trace, by core. A core without turns and visits is left out.
pub(super) fn of(trace: &Trace) -> Vec<Engine> {
    let mut turns: BTreeMap<u32, [Times; 2]> = BTreeMap::new();
    let mut requests: BTreeMap<u32, u64> = BTreeMap::new();
    let mut visits: BTreeMap<u32, BTreeMap<(u32, u8), Times>> = BTreeMap::new();
    let mut sums: BTreeMap<(u32, u32, u8), Sums> = BTreeMap::new();
    for event in &trace.events {
        let (core, record) = (event.core, &event.record);
        match (record.known_kind(), record.code) {
            (Some(Kind::Turn), BUSY) => {
                let [busy, _] = turns.entry(core).or_default();
                busy.add(record.span);
                let moved = requests.entry(core).or_default();
                *moved = moved.saturating_add(record.a);
            }
            (Some(Kind::Turn), IDLE) => {
                let [_, idle] = turns.entry(core).or_default();
                idle.add(record.span);
            }
            (Some(Kind::Visit), _) => {
                let queue = (slot(record), record.unit);
                visits.entry(core).or_default().entry(queue).or_default().add(record.span);
                let sums = sums.entry((core, queue.0, queue.1)).or_default();
                sums.requests = sums.requests.saturating_add(amount(record).into());
                sums.bytes = sums.bytes.saturating_add(record.b);
            }
            (Some(Kind::Completion), code) => {
                // A queue with completions and no visit has a row too.
                visits.entry(core).or_default().entry((slot(record), record.unit)).or_default();
                let sums = sums.entry((core, slot(record), record.unit)).or_default();
                sums.completions = sums.completions.saturating_add(1);
                sums.notified = sums.notified.saturating_add(u64::from(code == NOTIFIED));
            }
            _ => {}
        }
    }
    let mut engines: BTreeMap<u32, Engine> = BTreeMap::new();
    for (core, [busy, idle]) in turns {
        let engine = engines.entry(core).or_default();
        engine.busy_turns = (!busy.is_empty()).then(|| Row::alone(busy));
        engine.idle_turns = (!idle.is_empty()).then(|| Row::alone(idle));
        engine.requests = requests.get(&core).copied().unwrap_or_default();
    }
    for (core, times) in visits {
        let queue = |((slot, queue), row)| {
            let Sums { requests, bytes, completions, notified } =
                sums.get(&(core, slot, queue)).copied().unwrap_or_default();
            Queue { device: trace.names.device(core, slot), queue, row, requests, bytes, completions, notified }
        };
        engines.entry(core).or_default().queues = rows(times).into_iter().map(queue).collect();
    }
    engines.into_iter().map(|(core, engine)| Engine { core, ..engine }).collect()
}
