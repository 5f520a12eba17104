//! How the engine learns of requests: by notifications only, and by whichever suits the load. That polling needs no
//! notification is part of `two-guests-ping`.

use anyhow::{Context as _, Result};
use control::{Counters, Port};

use crate::cases::network::number;
use crate::guests::{Guest, server};
use crate::scenario::{Context, QEMU, Scenario, seconds};

const PINGS: u64 = 1000;
/// Pings after the load, each after a pause: it has to wake an armed queue.
const LATER: u64 = 8;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "requests-notify",
            about: "1,000 pings with `requests = \"notify\"`: each is announced by a notification, none is lost",
            platforms: QEMU,
            slow_on_bochs: false,
            run: notify,
        },
        Scenario {
            name: "requests-adaptive",
            about: "`requests = \"adaptive\"`: polled under load, notified after it, and no kick lost on the way",
            platforms: QEMU,
            slow_on_bochs: false,
            run: adaptive,
        },
    ]
}

/// The one port of a guest.
fn port<'a>(counters: &'a Counters, name: &str) -> Result<&'a Port> {
    let guest = counters.guest(name).with_context(|| format!("no guest {name} in the counters"))?;
    guest.ports.first().with_context(|| format!("guest {name} has no port"))
}

/// Exits by which a guest notified.
pub(super) fn notify_exits(counters: &Counters, name: &str) -> u64 {
    let vcpus = counters.guest(name).into_iter().flat_map(|g| &g.vcpus);
    vcpus.flat_map(|v| &v.exits).filter(|e| e.reason == "io-virtio-notify").map(|e| e.count).sum()
}

fn notify(context: &mut Context<'_>) -> Result<()> {
    let guests = [Guest::new(1).peer(2).then(format!("ping:{PINGS}")).then("wait"), Guest::new(2).then("wait")];
    let mut session = context.boot(&server("requests-notify", &guests.map(|g| g.requests("notify"))))?;
    let ping = session.result("a", "ping", seconds(240))?;
    context.figures.exactly("pings answered", number(&ping, "received")?, PINGS)?;
    context.figures.note("average round trip, us", number(&ping, "avg_us")?);
    let counters = session.counters()?;
    for name in ["a", "b"] {
        let port = port(&counters, name)?;
        let figures = &mut context.figures;
        // A ping waits for its reply, so nearly each one finds its queue armed.
        figures.at_least(&format!("kicks of {name}"), port.kicks, PINGS * 9 / 10)?;
        figures.at_least(&format!("times a queue of {name} was armed"), port.arms, PINGS * 9 / 10)?;
        figures.exactly(&format!("times polling of {name} began"), port.polls, 0)?;
        figures.exactly(&format!("exits of {name} for kicks"), notify_exits(&counters, name), port.kicks)?;
    }
    session.shut_down()?;
    Ok(())
}

fn adaptive(context: &mut Context<'_>) -> Result<()> {
    let a = Guest::new(1).full().then("iperf-server").then("wait");
    let load = Guest::new(2).full().peer(1).then("iperf:4");
    let b = (0..LATER).fold(load, |guest, _| guest.then("sleep:1").then("ping:1")).then("wait");
    let mut session = context.boot(&server("requests-adaptive", &[a, b].map(|g| g.requests("adaptive"))))?;
    let iperf = session.result("b", "iperf", seconds(240))?;
    let before = session.counters()?;
    let mut answered = 0;
    for _ in 0..LATER {
        answered += number(&session.result("b", "ping", seconds(60))?, "received")?;
    }
    let after = session.counters()?;
    let figures = &mut context.figures;
    figures.at_least("iperf bytes", number(&iperf, "bytes")?, 10_000_000)?;
    let (loaded, later) = (port(&before, "b")?, port(&after, "b")?);
    figures.at_least("times polling of b began", loaded.polls, 1)?;
    figures.at_least("kicks of b, with those that led to polling", loaded.kicks, 10)?;
    figures.at_least("packets from b under load for each kick", loaded.tx_packets / loaded.kicks.max(1), 10)?;
    figures.exactly("pings after the load answered", answered, LATER)?;
    figures.at_least("kicks of b after the load", later.kicks - loaded.kicks, LATER)?;
    figures.at_least("times a queue of b was armed after the load", later.arms - loaded.arms, LATER)?;
    session.shut_down()?;
    Ok(())
}
