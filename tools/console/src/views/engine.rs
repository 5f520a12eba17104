//! Engines: turns, time, batches, and how their queues are looked at.

use control::{Engine, Guest, Watched};

use super::latency;
use super::nothing::gone;
use crate::rates::{Pair, each};
use crate::sheet::{Row, Sheet, Table, Tone, Value, number, words};
use crate::state::State;

/// All engines, and all devices that they serve.
pub fn sheet(state: &State, pair: &Pair<'_>) -> Sheet {
    let mut main = table();
    main.rows.extend(pair.now.engines.iter().map(|engine| row(pair, engine)));
    Sheet { key: "engine", facts: Vec::new(), main, more: vec![latency::turns(state, None), queues(pair)] }
}

/// One engine: how long its turns and visits take, its profile and its uplinks.
pub fn detail(state: &State, pair: &Pair<'_>, id: &str) -> Sheet {
    let Some(engine) = pair.now.engines.iter().find(|engine| engine.id.to_string() == id) else {
        return gone("engine");
    };
    let mut main = table();
    main.rows.push(row(pair, engine));
    let fact = match &engine.watched {
        Some(watched) => format!(
            "longest turn {} cycles; completions: {} with an interrupt, {} whose driver wanted none",
            watched.longest_turn, watched.notified, watched.suppressed
        ),
        None => "It was never watched: `w` switches its profile on and off.".into(),
    };
    let mut uplinks = Table::new(
        "uplinks",
        "Uplinks",
        &[
            words("name", "name", 0),
            words("device", "device", 0),
            words("count", "count", 0),
            number("total", "total", 0),
        ],
    );
    for uplink in &engine.uplinks {
        for count in &uplink.counts {
            let cells = vec![(*uplink.name).into(), (*uplink.device).into(), (*count.kind).into(), count.count.into()];
            uplinks.row(uplink.name.clone(), Tone::Plain, cells);
        }
    }
    Sheet {
        key: "engine",
        facts: vec![fact],
        main,
        more: vec![latency::turns(state, Some(id)), visits(engine.watched.as_ref()), uplinks],
    }
}

/// Visits to queues by the number of requests that they took. It has no rows if the engine was never watched.
fn visits(watched: Option<&Watched>) -> Table {
    let mut table = Table::new(
        "visits",
        "Visits by requests taken, while the engine was watched",
        &[
            words("requests", "requests", 0),
            number("visits", "visits", 0),
            number("share", "share", 0),
            words("bar", "", 0),
        ],
    );
    let Some(watched) = watched else { return table };
    let counts = std::iter::once(&watched.empty_visits).chain(&watched.visits);
    let all = counts.clone().fold(0_u64, |sum, count| sum.saturating_add(*count)).max(1) as f64;
    let last = watched.visits.len().saturating_sub(1);
    let names = std::iter::once("none".into()).chain((0_u32..).map(|n| batch(n, n as usize == last)));
    for (name, count) in names.zip(counts) {
        let share = Some(*count as f64 / all);
        let cells = vec![Value::Text(name.clone()), (*count).into(), Value::Share(share), Value::Bar(share)];
        table.row(name, Tone::Plain, cells);
    }
    table
}

/// Names the visits of entry `n` of [`Watched::visits`]: 2^n requests or more, and fewer than twice as many. The last entry has no upper bound.
fn batch(n: u32, last: bool) -> String {
    let least = 1_u64.checked_shl(n).unwrap_or(u64::MAX);
    match least.saturating_mul(2).saturating_sub(1) {
        _ if last => format!("{least} or more"),
        1 => "1".into(),
        most => format!("{least} to {most}"),
    }
}

fn table() -> Table {
    Table::new(
        "engines",
        "Engines",
        &[
            number("id", "id", 0),
            number("core", "core", 0),
            number("node", "node", 3),
            number("busy", "busy", 0),
            words("bar", "", 1),
            number("busy_minute", "60 s", 1),
            number("turns_per_second", "turns/s", 0),
            number("busy_turns_per_second", "busy/s", 1),
            number("cycles_per_busy_turn", "cyc/busy", 2),
            number("cycles_per_idle_turn", "cyc/idle", 3),
            number("long_turns", "long", 2),
        ],
    )
}

fn row(pair: &Pair<'_>, engine: &Engine) -> Row {
    let before = pair.engine(engine);
    let then = |value: fn(&Engine) -> u64| before.map(value);
    let busy = pair.share(engine.busy_cycles, then(|e| e.busy_cycles));
    let busy_turns = pair.rate(engine.busy_turns, then(|e| e.busy_turns));
    let idle_turns = pair.rate(engine.idle_turns, then(|e| e.idle_turns));
    let busy_cycles = pair.rate(engine.busy_cycles, then(|e| e.busy_cycles));
    let idle_cycles = pair.rate(engine.idle_cycles, then(|e| e.idle_cycles));
    Row {
        id: engine.id.to_string(),
        tone: if engine.long_turns > before.map_or(engine.long_turns, |e| e.long_turns) {
            Tone::Warning
        } else {
            Tone::Plain
        },
        cells: vec![
            engine.id.into(),
            engine.core.into(),
            Value::Number(engine.node.map(|node| node as f64)),
            Value::Share(busy),
            Value::Bar(busy),
            Value::Share(engine.busy_permille_minute.map(|permille| permille as f64 / 1000.0)),
            busy_turns.zip(idle_turns).map(|(busy, idle)| busy + idle).into(),
            busy_turns.into(),
            each(busy_cycles, busy_turns).into(),
            each(idle_cycles, idle_turns).into(),
            engine.long_turns.into(),
        ],
    }
}

/// Counters of a device's queues that ports and disks have in common.
struct Queues {
    device: String,
    requests: Option<u64>,
    kicks: u64,
    arms: u64,
    polls: u64,
    interrupts: u64,
    cycles: u64,
}

fn devices(guest: &Guest) -> Vec<Queues> {
    let ports = guest.ports.iter().enumerate().map(|(n, port)| Queues {
        device: format!("net {n}"),
        requests: Some(port.rx_packets.saturating_add(port.tx_packets)),
        kicks: port.kicks,
        arms: port.arms,
        polls: port.polls,
        interrupts: port.interrupts,
        cycles: port.engine_cycles,
    });
    let blocks = guest.blocks.iter().enumerate().map(|(n, block)| Queues {
        device: format!("disk {n}"),
        requests: Some(super::disk::requests(block)),
        kicks: block.kicks,
        arms: block.arms,
        polls: block.polls,
        interrupts: block.interrupts,
        cycles: block.engine_cycles,
    });
    let consoles = guest.consoles.iter().enumerate().map(|(n, console)| Queues {
        device: format!("console {n}"),
        requests: None,
        kicks: console.kicks,
        arms: 0,
        polls: 0,
        interrupts: console.interrupts,
        cycles: console.engine_cycles,
    });
    let entropy = guest.entropy.iter().enumerate().map(|(n, entropy)| Queues {
        device: format!("entropy {n}"),
        requests: Some(entropy.requests),
        kicks: entropy.kicks,
        arms: 0,
        polls: 0,
        interrupts: entropy.interrupts,
        cycles: entropy.engine_cycles,
    });
    ports.chain(blocks).chain(consoles).chain(entropy).collect()
}

fn queues(pair: &Pair<'_>) -> Table {
    let mut table = Table::new(
        "devices",
        "Devices (by: how the engine learned of their last requests)",
        &[
            words("guest", "guest", 0),
            words("device", "device", 0),
            words("how", "by", 0),
            number("requests_per_second", "req/s", 0),
            number("kicks_per_second", "kicks/s", 1),
            number("interrupts_per_second", "intr/s", 2),
            number("engine_share", "engine", 1),
            number("arms", "arms", 3),
            number("polls", "polls", 3),
        ],
    );
    for guest in &pair.now.guests {
        let before = pair.guest(guest).map(devices).unwrap_or_default();
        for (n, now) in devices(guest).into_iter().enumerate() {
            let then = before.get(n);
            let rate = |now: u64, value: fn(&Queues) -> u64| pair.rate(now, then.map(value));
            let requests = now.requests.and_then(|now| pair.rate(now, then.and_then(|then| then.requests)));
            let kicks = rate(now.kicks, |q| q.kicks);
            let changed =
                rate(now.polls, |q| q.polls).zip(rate(now.arms, |q| q.arms)).map(|(polls, arms)| polls + arms);
            let cells = vec![
                (*guest.name).into(),
                Value::Text(now.device.clone()),
                how(requests, kicks, changed).into(),
                requests.into(),
                kicks.into(),
                rate(now.interrupts, |q| q.interrupts).into(),
                Value::Share(pair.share(now.cycles, then.map(|q| q.cycles))),
                now.arms.into(),
                now.polls.into(),
            ];
            let tone = if requests.is_some_and(|requests| requests > 0.0) { Tone::Plain } else { Tone::Quiet };
            table.row(format!("{} {}", guest.name, now.device), tone, cells);
        }
    }
    table
}

/// How the engine learned of requests, as far as rates tell: `changed` is the rate at which polling began and ended.
fn how(requests: Option<f64>, kicks: Option<f64>, changed: Option<f64>) -> &'static str {
    let Some(kicks) = kicks else { return "-" };
    match (requests.unwrap_or(0.0) > 0.0, kicks > 0.0, changed.unwrap_or(0.0) > 0.0) {
        (_, true, true) => "both",
        (_, true, false) => "kicks",
        (true, false, _) => "polling",
        (false, false, _) => "idle",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{batch, how, sheet};
    use crate::rates::Pair;
    use crate::sheet::Value;
    use crate::state::State;
    use control::{Counters, Engine};

    #[test]
    fn the_minute_is_the_machines_own_and_unknown_on_one_that_does_not_tell_it() {
        let minutes = [Some(642), None, Some(u64::MAX)];
        let engine = |(id, busy_permille_minute)| Engine { id, busy_permille_minute, ..Engine::default() };
        let now = Counters { engines: (0..).zip(minutes).map(engine).collect(), ..Counters::default() };
        let main = sheet(&State::new(Duration::ZERO), &Pair::new(&now, None)).main;
        let column = main.columns.iter().position(|column| column.key == "busy_minute").unwrap();
        let shown: Vec<_> = main.rows.iter().map(|row| row.cells[column].shown()).collect();
        assert_eq!(shown[..2], ["64.2 %", "-"]);
        assert_eq!(shown[2], Value::Share(Some(u64::MAX as f64 / 1000.0)).shown());
    }

    #[test]
    fn batches_are_named_by_their_bounds() {
        let names: Vec<_> = (0..4).map(|n| batch(n, n == 3)).collect();
        assert_eq!(names, ["1", "2 to 3", "4 to 7", "8 or more"]);
    }

    #[test]
    fn a_device_with_requests_and_no_kicks_was_polled() {
        assert_eq!(how(Some(100.0), Some(0.0), Some(0.0)), "polling");
        assert_eq!(how(Some(100.0), Some(5.0), Some(0.0)), "kicks");
        assert_eq!(how(Some(100.0), Some(5.0), Some(1.0)), "both");
        assert_eq!(how(Some(0.0), Some(0.0), Some(0.0)), "idle");
        assert_eq!(how(None, Some(1.0), None), "kicks");
        assert_eq!(how(None, None, None), "-");
    }
}
