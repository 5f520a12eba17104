//! Guests that talk to each other through the engine.

use anyhow::{Context as _, Result, ensure};
use control::Counters;
use serde_json::Value;

use crate::guests::{Guest, address, scheduling, server};
use crate::machine::Setup;
use crate::scenario::{Context, EVERYWHERE, QEMU, Scenario, seconds};
use crate::session::Session;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "two-guests-ping",
            about: "1,000 pings from one guest to the other, none lost",
            platforms: EVERYWHERE,
            slow_on_bochs: false,
            run: two_guests_ping,
        },
        Scenario {
            name: "two-guests-iperf",
            about: "TCP both ways, and a file of 256 MiB that arrives intact",
            platforms: QEMU,
            slow_on_bochs: false,
            run: two_guests_iperf,
        },
        Scenario {
            name: "per-device",
            about: "seven guests on one engine with `scheduling = \"per-device\"`, each reaches all others",
            platforms: QEMU,
            slow_on_bochs: false,
            run: per_device,
        },
        Scenario {
            name: "seven-guests",
            about: "seven guests on one engine, each reaches all others",
            platforms: QEMU,
            slow_on_bochs: false,
            run: seven_guests,
        },
    ]
}

/// A number of a guest's result line.
pub fn number(result: &Value, name: &str) -> Result<u64> {
    result[name].as_u64().with_context(|| format!("no number {name:?} in {result}"))
}

/// Sums over all ports of a guest: packets to it and from it.
fn packets(counters: &Counters, name: &str) -> Result<(u64, u64)> {
    let guest = counters.guest(name).with_context(|| format!("no guest {name} in the counters"))?;
    Ok(guest.ports.iter().fold((0, 0), |(rx, tx), port| (rx + port.rx_packets, tx + port.tx_packets)))
}

fn two_guests_ping(context: &mut Context<'_>) -> Result<()> {
    let guests = [Guest::new(1).peer(2).then("ping:1000").then("wait"), Guest::new(2).then("wait")];
    let mut session = context.boot(&server("two-guests-ping", &guests))?;
    let ping = session.result("a", "ping", seconds(240))?;
    let figures = &mut context.figures;
    figures.exactly("pings sent", number(&ping, "sent")?, 1000)?;
    figures.exactly("pings answered", number(&ping, "received")?, 1000)?;
    figures.note("average round trip, us", number(&ping, "avg_us")?);
    let counters = session.counters()?;
    for name in ["a", "b"] {
        let (rx, tx) = packets(&counters, name)?;
        figures.at_least(&format!("packets to {name}"), rx, 1000)?;
        figures.at_least(&format!("packets from {name}"), tx, 1000)?;
        let exits = counters.guest(name).map_or(0, control::Guest::total_exits);
        figures.at_least(&format!("exits of {name}"), exits, 1000)?;
        let ports = counters.guest(name).into_iter().flat_map(|g| &g.ports);
        let kicks: u64 = ports.map(|port| port.kicks.saturating_sub(port.commands)).sum();
        figures.exactly(&format!("kicks of {name} but for commands: its queues are polled"), kicks, 0)?;
    }
    let busy: u64 = counters.engines.iter().map(|engine| engine.busy_turns).sum();
    figures.at_least("busy turns of the engine", busy, 1000)?;
    session.shut_down()?;
    Ok(())
}

fn two_guests_iperf(context: &mut Context<'_>) -> Result<()> {
    let a = Guest::new(1).full().then("iperf-server").then("serve:256").then("wait").memory_mib(448);
    let b = Guest::new(2).full().peer(1).then("iperf:5").then("iperf:5:reverse").then("fetch").memory_mib(448);
    let mut session = context.boot(&server("two-guests-iperf", &[a, b]))?;
    for direction in ["out", "in"] {
        let iperf = session.result("b", "iperf", seconds(240))?;
        ensure!(iperf["direction"] == direction, "expected the result for {direction:?}, got {iperf}");
        context.figures.at_least(&format!("iperf bytes, {direction}"), number(&iperf, "bytes")?, 10_000_000)?;
        context.figures.note(&format!("bit/s, {direction}"), number(&iperf, "bits_per_second")?);
        context.figures.note(&format!("retransmits, {direction}"), number(&iperf, "retransmits")?);
    }
    file_arrived(context, &mut session, 256)?;
    let (rx, tx) = packets(&session.counters()?, "a")?;
    // Up to 64 KiB each: nothing is cut between two guests.
    context.figures.at_least("packets to a", rx, 1_000)?;
    context.figures.at_least("packets from a", tx, 1_000)?;
    session.shut_down()?;
    Ok(())
}

/// That the file of so many MiB which guest a serves has come to guest b, and is the same.
pub(super) fn file_arrived(context: &mut Context<'_>, session: &mut Session, mib: u64) -> Result<()> {
    let sent = session.result("a", "serve", seconds(120))?;
    let received = session.result("b", "fetch", seconds(300))?;
    context.figures.at_least("file bytes", number(&received, "bytes")?, mib << 20)?;
    let same = sent["sha256"] == received["sha256"] && sent["sha256"].as_str().is_some_and(|sum| sum.len() == 64);
    context.figures.exactly("files with the right checksum", usize::from(same), 1)
}

fn seven_guests(context: &mut Context<'_>) -> Result<()> {
    among_seven(context, |guests| server("seven-guests", guests))
}

fn per_device(context: &mut Context<'_>) -> Result<()> {
    among_seven(context, |guests| scheduling(server("per-device", guests), "per-device"))
}

fn among_seven(context: &mut Context<'_>, setup: fn(&[Guest]) -> Setup) -> Result<()> {
    const PINGS: u64 = 10;
    let guest = |number: usize| {
        let others = (1..=7).filter(|other| *other != number);
        let guest = Guest::new(number);
        others.fold(guest, |guest, other| guest.then(format!("ping:{PINGS}:{}", address(other)))).then("wait")
    };
    let guests: Vec<Guest> = (1..=7).map(guest).collect();
    let mut session = context.boot(&setup(&guests))?;
    let (mut pairs, mut answered) = (0_u64, 0);
    for guest in &guests {
        for _ in 1..guests.len() {
            let ping = session.result(guest.name(), "ping", seconds(300))?;
            answered += number(&ping, "received")?;
            pairs += u64::from(number(&ping, "received")? == PINGS);
        }
    }
    context.figures.exactly("pings answered", answered, 42 * PINGS)?;
    context.figures.exactly("pairs that reach each other", pairs, 42)?;
    let counters = session.counters()?;
    context.figures.exactly("engines", counters.engines.len(), 1)?;
    context.figures.exactly("guests", counters.guests.len(), 7)?;
    session.shut_down()?;
    Ok(())
}
