//! Network ports and uplinks: rates, and drops by cause.

use control::{Guest, Port, StageCounters};

use super::device;
use super::latency::{self, Of};
use super::nothing::gone;
use crate::clean::{NAME, clean};
use crate::rates::{Named, Pair, count, total};
use crate::sheet::{Sheet, Table, Tone, Value, number, words};
use crate::state::State;

fn then<'a>(pair: &Pair<'a>, guest: &Guest, n: usize, port: &Port) -> Option<&'a Port> {
    pair.guest(guest)?.ports.get(n).filter(|before| before.mac == port.mac)
}

/// All ports, how long their requests take, and all uplinks.
pub fn sheet(state: &State, pair: &Pair<'_>) -> Sheet {
    let mut main = Table::new(
        "ports",
        "Ports (rx: towards the guest; dropped: since the guest's start)",
        &[
            words("guest", "guest", 0),
            number("port", "port", 2),
            words("mac", "mac", 3),
            number("rx_packets_per_second", "rx/s", 0),
            number("rx_bits_per_second", "rx bit/s", 0),
            number("tx_packets_per_second", "tx/s", 0),
            number("tx_bits_per_second", "tx bit/s", 0),
            number("drops_per_second", "drops/s", 0),
            number("drops", "dropped", 1),
            number("kicks_per_second", "kicks/s", 2),
            number("interrupts_per_second", "intr/s", 2),
            number("engine_share", "engine", 1),
        ],
    );
    for guest in &pair.now.guests {
        for (n, port) in guest.ports.iter().enumerate() {
            let before = then(pair, guest, n, port);
            let rate = |value: fn(&Port) -> u64| pair.rate(value(port), before.map(value));
            let bits = |value: fn(&Port) -> u64| Value::Number(rate(value).map(|bytes| bytes * 8.0));
            let drops = pair.rate(total(&port.drops), before.map(|before| total(&before.drops)));
            let tone = match drops {
                Some(drops) if drops > 0.0 => Tone::Warning,
                _ if port.ring_errors > 0 => Tone::Bad,
                _ if rate(|p| p.rx_packets.saturating_add(p.tx_packets)) > Some(0.0) => Tone::Plain,
                _ => Tone::Quiet,
            };
            main.row(
                device::id(guest, n),
                tone,
                vec![
                    (*guest.name).into(),
                    (n as u64).into(),
                    (*port.mac).into(),
                    rate(|p| p.rx_packets).into(),
                    bits(|p| p.rx_bytes),
                    rate(|p| p.tx_packets).into(),
                    bits(|p| p.tx_bytes),
                    drops.into(),
                    total(&port.drops).into(),
                    rate(|p| p.kicks).into(),
                    rate(|p| p.interrupts).into(),
                    Value::Share(pair.share(port.engine_cycles, before.map(|p| p.engine_cycles))),
                ],
            );
        }
    }
    let mut uplinks = Table::new(
        "uplinks",
        "Uplinks",
        &[
            words("name", "name", 0),
            words("device", "device", 0),
            words("count", "count", 0),
            number("total", "total", 0),
            number("per_second", "/s", 0),
        ],
    );
    for engine in &pair.now.engines {
        let before = pair.engine(engine);
        for (n, uplink) in engine.uplinks.iter().enumerate() {
            let before = before.and_then(|engine| engine.uplinks.get(n));
            for one in &uplink.counts {
                let rate = pair.rate(one.count, before.map(|before| before.count(&one.kind)));
                let cells = vec![
                    (*uplink.name).into(),
                    (*uplink.device).into(),
                    (*one.kind).into(),
                    one.count.into(),
                    rate.into(),
                ];
                uplinks.row(format!("{} {}", uplink.name, one.kind), Tone::Plain, cells);
            }
        }
    }
    Sheet { key: "port", facts: Vec::new(), main, more: vec![latency::requests(state, Of::Net), uplinks] }
}

/// One port: how long its requests take, drops by cause, its stages, and its other counts.
pub fn detail(state: &State, pair: &Pair<'_>, wanted: &str) -> Sheet {
    let found = device::find(pair, wanted, |guest| &guest.ports);
    let Some((guest, n, port)) = found else { return gone("port") };
    let before = then(pair, guest, n, port);
    let title = format!("Port {n} of {}, {}", clean(&guest.name, NAME), clean(&port.mac, NAME));
    let mut main = device::counts("counts", title, words("kind", "count", 0));
    let counters: [Named<Port>; 14] = [
        ("rx packets", |p| p.rx_packets),
        ("rx bytes", |p| p.rx_bytes),
        ("tx packets", |p| p.tx_packets),
        ("tx bytes", |p| p.tx_bytes),
        ("kicks", |p| p.kicks),
        ("interrupts", |p| p.interrupts),
        ("polling ended (arms)", |p| p.arms),
        ("polling began (polls)", |p| p.polls),
        ("checksums computed", |p| p.checksums),
        ("segments cut", |p| p.segments),
        ("commands", |p| p.commands),
        ("resets", |p| p.resets),
        ("requests back after a reset", |p| p.stale_tokens),
        ("ring errors", |p| p.ring_errors),
    ];
    device::add(&mut main, pair, &counters, port, before);
    let mut drops = device::counts("drops", "Drops by cause", words("cause", "cause", 0));
    for drop in &port.drops {
        let rate = pair.rate(drop.count, before.map(|before| count(&before.drops, &drop.kind)));
        let tone = if rate > Some(0.0) { Tone::Warning } else { Tone::Plain };
        drops.row(&*drop.kind, tone, vec![(*drop.kind).into(), drop.count.into(), rate.into()]);
    }
    let requests = latency::requests(state, Of::Port(&guest.name, n));
    Sheet { key: "port", facts: Vec::new(), main, more: vec![requests, drops, stages(&port.stages)] }
}

fn stages(stages: &[StageCounters]) -> Table {
    let mut table = Table::new(
        "stages",
        "Stages",
        &[
            words("stage", "stage", 0),
            words("direction", "way", 0),
            number("frames", "frames", 0),
            number("bytes", "bytes", 1),
            number("dropped", "dropped", 0),
        ],
    );
    for one in stages {
        table.row(
            &*one.stage,
            Tone::Plain,
            vec![
                (*one.stage).into(),
                (*one.direction).into(),
                one.frames.into(),
                Value::Bytes(one.bytes),
                one.dropped.into(),
            ],
        );
    }
    table
}
