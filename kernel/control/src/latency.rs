//! How long exits, turns, visits and the control core's ticks took: the answer to `latency`, and the table of `show latency`.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};
use trace::histogram::Totals;

use crate::Text;
use crate::table::layout::Cell::{Micros, Number, Numbered, Text as Word};
use crate::table::layout::table;

/// How long exits, turns, visits and the control core's ticks took since `trace on histograms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The `id` of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Whether it is recorded now.
    pub on: bool,
    /// Ticks of the TSC in a second.
    pub tsc_hz: u64,
    /// What was recorded. What did not happen is left out.
    pub rows: Vec<Durations>,
}

/// `what` of the requests that wait in a queue.
pub const OCCUPANCY: &str = "occupancy";

/// Durations of a kind, in ticks of the TSC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// The guest whose exits these are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// The queue of that guest whose requests these are: its device and its number there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The id of the engine whose turns or visits these are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<u64>,
    /// The reason of the exits. Of an engine: `busy-turn`, `idle-turn` or `visit`. Without guest and engine: `tick`, a tick of the control
    /// core. Of a queue: `arrival` (a request's arrival to its completion), `taken` (completions published until the driver was seen to have taken them, an upper bound) or
    /// [`OCCUPANCY`], whose values are requests that wait at a visit, not ticks.
    pub what: Text,
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// Half of them are not longer. Like the other percentiles it is at most an eighth too large, of a queue a quarter.
    pub p50: u64,
    /// 90 % of them are not longer.
    pub p90: u64,
    /// 99 % of them are not longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Durations {
    /// The figures of `totals`, of no guest and no engine. `None`: nothing was counted.
    #[must_use]
    pub fn of<const BITS: u32, const N: usize>(what: &'static str, totals: &Totals<BITS, N>) -> Option<Self> {
        let [p50, p90, p99] = [500, 900, 990].map(|per_mille| totals.percentile(per_mille));
        let (count, sum, max) = (totals.count(), totals.sum(), totals.most());
        (count != 0).then(|| Self { what: what.into(), count, sum, p50, p90, p99, max, ..Self::default() })
    }
}

/// Writes the tables of `show latency`: in microseconds exits, turns and visits, then queues, and at last requests that wait.
///
/// # Errors
/// `out` fails.
pub fn show(latency: &Latency, out: &mut dyn fmt::Write) -> fmt::Result {
    if !latency.on {
        out.write_str("nothing is recorded now; `trace on histograms` begins\n")?;
    }
    if latency.rows.is_empty() {
        return out.write_str("nothing was recorded\n");
    }
    let us = |ticks| Micros(ticks, latency.tsc_hz);
    let others = latency.rows.iter().filter(|row| row.queue.is_none());
    let rows = others.map(|Durations { guest, engine, what, count, p50, p90, p99, max, .. }| {
        let of = match (guest, engine) {
            (Some(guest), _) => Word(guest),
            (None, Some(engine)) => Numbered("engine", *engine),
            (None, None) => Word("control core"),
        };
        [of, Word(what), Number(*count), us(*p50), us(*p90), us(*p99), us(*max)]
    });
    if rows.clone().next().is_some() {
        table(["of", "what", "count", "p50 us", "p90 us", "p99 us", "max us"], "llrrrrr", 2, rows, out)?;
    }
    for waiting in [false, true] {
        let of_queues = latency
            .rows
            .iter()
            .filter_map(|row| Some((row.queue.as_deref()?, row)))
            .filter(move |(_, row)| (row.what == OCCUPANCY) == waiting);
        let rows = of_queues.map(|(queue, Durations { guest, what, count, p50, p90, p99, max, .. })| {
            let value = |value| if waiting { Number(value) } else { us(value) };
            let guest = guest.as_deref().unwrap_or("");
            [Word(guest), Word(queue), Word(what), Number(*count), value(*p50), value(*p90), value(*p99), value(*max)]
        });
        if rows.clone().next().is_none() {
            continue;
        }
        let names = if waiting {
            ["of", "queue", "what", "visits", "p50", "p90", "p99", "max"]
        } else {
            ["of", "queue", "what", "count", "p50 us", "p90 us", "p99 us", "max us"]
        };
        table(names, "lllrrrrr", 3, rows, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
