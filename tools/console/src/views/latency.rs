//! How long something took, as tables: a row for each kind of it. The machine records it while `trace on histograms` is on.

use control::{Durations, Latency, OCCUPANCY};

use crate::clean::{NAME, clean};
use crate::sheet::{Column, Table, Tone, Value, number, words};
use crate::state::State;

/// Times of a guest's exits, by reason.
pub fn exits(state: &State, guest: &str) -> Table {
    let table = Table::new(
        "times",
        title(state, "How long exits take, in microseconds"),
        &times(&[words("reason", "reason", 0)], "exits"),
    );
    let is_its = |row: &Durations| row.guest.as_deref() == Some(guest) && row.queue.is_none();
    filled(table, state, is_its, |_| Vec::new())
}

/// Times of the turns and visits of an engine, or of all.
pub fn turns(state: &State, engine: Option<&str>) -> Table {
    let first = [number("engine", "engine", 0), words("what", "what", 0)];
    let table =
        Table::new("times", title(state, "How long turns and visits take, in microseconds"), &times(&first, "count"));
    let is_its = |row: &Durations| row.engine.is_some_and(|id| engine.is_none_or(|wanted| id.to_string() == wanted));
    filled(table, state, is_its, |row| vec![row.engine.unwrap_or_default().into()])
}

/// The queues whose rows a table has.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    /// All of the network devices of all guests.
    Net,
    /// Those of a guest's network device with a number.
    Port(&'a str, usize),
}

impl Of<'_> {
    fn has(self, row: &Durations) -> bool {
        // The name is `net0 queue 1`, for example.
        let Some(device) = row.queue.as_deref().and_then(|queue| queue.split_once(' ')).map(|(device, _)| device)
        else {
            return false;
        };
        match (self, device.strip_prefix("net").and_then(|number| number.parse::<usize>().ok())) {
            (Self::Net, net) => net.is_some(),
            (Self::Port(guest, wanted), net) => net == Some(wanted) && row.guest.as_deref() == Some(guest),
        }
    }
}

/// Requests of queues: the time from arrival to completion, that until the driver was seen to have taken the completion, and how many
/// wait when the engine looks.
pub fn requests(state: &State, of: Of<'_>) -> Table {
    let columns = [
        words("guest", "guest", 0),
        words("queue", "queue", 0),
        words("what", "what", 0),
        words("unit", "unit", 2),
        number("count", "count", 0),
        number("p50", "p50", 0),
        number("p90", "p90", 1),
        number("p99", "p99", 0),
        number("max", "max", 1),
    ];
    let mut table =
        Table::new("latency", title(state, "Requests: arrival to completion, told to taken; how many wait"), &columns);
    let Some(Latency { tsc_hz, rows, .. }) = &state.latency else { return table };
    for row in rows.iter().filter(|row| of.has(row)) {
        let is_time = row.what != OCCUPANCY;
        let value = |value| if is_time { us(value, *tsc_hz) } else { Value::Count(value) };
        let [guest, queue] = [&row.guest, &row.queue].map(|name| Value::text(name.as_deref().unwrap_or_default()));
        let unit = if is_time { "us" } else { "requests" };
        let values = [row.p50, row.p90, row.p99, row.max].map(value);
        let names = [guest, queue, Value::text(&row.what), unit.into(), row.count.into()];
        table.row(id(row), Tone::Plain, names.into_iter().chain(values).collect());
    }
    table
}

fn id(row: &Durations) -> String {
    let [guest, queue] = [&row.guest, &row.queue].map(|name| name.as_deref().unwrap_or_default());
    clean(&format!("{guest} {queue} {}", row.what), NAME)
}

fn title(state: &State, what: &str) -> String {
    let ended = state.latency.as_ref().is_some_and(|latency| !latency.on);
    format!("{what}{}", if ended { "; not recorded now" } else { "" })
}

fn us(ticks: u64, tsc_hz: u64) -> Value {
    Value::Number((tsc_hz > 0).then(|| ticks as f64 * 1e6 / tsc_hz as f64))
}

/// The columns of a table of times: `first`, how many, and percentiles in microseconds.
fn times(first: &[Column], count: &'static str) -> Vec<Column> {
    let percentiles = [
        number(count, count, 0),
        number("p50_us", "p50", 0),
        number("p90_us", "p90", 1),
        number("p99_us", "p99", 0),
        number("max_us", "max", 1),
    ];
    first.iter().chain(&percentiles).copied().collect()
}

/// The table with the rows that are wanted. `names`: the cells before that with what took so long.
fn filled(
    mut table: Table,
    state: &State,
    is_wanted: impl Fn(&Durations) -> bool,
    names: impl Fn(&Durations) -> Vec<Value>,
) -> Table {
    let Some(Latency { tsc_hz, rows, .. }) = &state.latency else { return table };
    for row in rows.iter().filter(|row| is_wanted(row)) {
        let times = [row.p50, row.p90, row.p99, row.max].map(|ticks| us(ticks, *tsc_hz));
        let cells = names(row).into_iter().chain([Value::text(&row.what), row.count.into()]).chain(times).collect();
        table.row(id(row), Tone::Plain, cells);
    }
    table
}
