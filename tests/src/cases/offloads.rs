//! Checksums and TCP segmentation that guests leave to others: kept undone between guests that can take it so, and done
//! by the engine for those that cannot.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Counters, Port};
use serde_json::Value;

use crate::cases::network::number;
use crate::guests::{Guest, server};
use crate::scenario::{Context, QEMU, Scenario, seconds};
use crate::session::Session;

/// Bytes of each run of iperf3, in MiB.
const MIB: u64 = 8;
/// Payload of a segment between guests with an MTU of 1,500.
const SEGMENT: u64 = 1448;

/// By ethtool's short and long names. Segmentation comes before what it rests on, which takes it along. What Linux's driver
/// receives it can only switch by a control queue; guests that are not offered it are in the other scenario.
const FEATURES: [(&str, &str); 4] = [
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("gro", "generic-receive-offload"),
    ("tx", "tx-checksum-ip-generic"),
];

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "offloads",
            about: "TCP both ways between two guests with each offload off and on: rows of segments stay whole",
            platforms: QEMU,
            slow_on_bochs: false,
            run: offloads,
        },
        Scenario {
            name: "offloads-software",
            about: "TCP and a file between a guest with all offloads and one with none, or checksums alone",
            platforms: QEMU,
            slow_on_bochs: false,
            run: software,
        },
    ]
}

/// Has a guest that obeys do something.
fn ask(session: &mut Session, name: &str, action: &str) -> Result<Value> {
    let input = Command::Input { guest: name.to_owned(), text: format!("{action}\n") };
    session.ask(input, seconds(20))?;
    session.result(name, action.split(':').next().unwrap_or(action), seconds(240))
}

fn switch(session: &mut Session, short: &str, long: &str, state: &str) -> Result<()> {
    for name in ["a", "b"] {
        let set = ask(session, name, &format!("set:{short}:{long}:{state}"))?;
        ensure!(set["good"] == true, "{short} {state} of {name}: {set}");
    }
    Ok(())
}

fn port<'c>(counters: &'c Counters, name: &str) -> Result<&'c Port> {
    counters.guest(name).and_then(|guest| guest.ports.first()).with_context(|| format!("no port of {name}"))
}

/// Mean bytes of a frame from a guest in a window.
fn mean(before: &Counters, after: &Counters, name: &str) -> Result<u64> {
    let (before, after) = (port(before, name)?, port(after, name)?);
    Ok((after.tx_bytes - before.tx_bytes) / (after.tx_packets - before.tx_packets).max(1))
}

/// TCP from b to a and from a to b, of [`MIB`] each: the mean length of a frame from the one that sent.
fn transfer(context: &mut Context<'_>, session: &mut Session, what: &str) -> Result<[u64; 2]> {
    let mut means = [0; 2];
    for (mean_of, (way, sender)) in means.iter_mut().zip([("", "b"), (":reverse", "a")]) {
        let before = session.counters()?;
        let tcp = ask(session, "b", &format!("iperf:{MIB}M{way}"))?;
        let after = session.counters()?;
        context.figures.at_least(&format!("{what}: bytes from {sender}"), number(&tcp, "bytes")?, 4_000_000)?;
        context.figures.note(&format!("{what}: bit/s from {sender}"), number(&tcp, "bits_per_second")?);
        *mean_of = mean(&before, &after, sender)?;
    }
    Ok(means)
}

fn offloads(context: &mut Context<'_>) -> Result<()> {
    let a = Guest::new(1).full().peer(2).then("iperf-server").then("obey");
    let b = Guest::new(2).full().peer(1).then("ping:1").then("obey");
    let mut session = context.boot(&server("offloads", &[a, b]))?;
    for name in ["a", "b"] {
        session.result(name, "obey", seconds(240))?;
    }
    for (mean, sender) in transfer(context, &mut session, "all on")?.into_iter().zip(["b", "a"]) {
        context.figures.at_least(&format!("all on: mean bytes of a frame from {sender}"), mean, 3_000)?;
    }
    let mut switched = 0_u64;
    for (short, long) in FEATURES {
        for state in ["off", "on"] {
            switch(&mut session, short, long, state)?;
            transfer(context, &mut session, &format!("{short} {state}"))?;
            switched += 1;
        }
    }
    context.figures.exactly("offloads switched", switched, 2 * FEATURES.len())?;

    for (short, long) in &FEATURES[..2] {
        switch(&mut session, short, long, "off")?;
    }
    for (mean, sender) in transfer(context, &mut session, "no segmentation")?.into_iter().zip(["b", "a"]) {
        context.figures.at_most(&format!("no segmentation: mean bytes of a frame from {sender}"), mean, 1_514)?;
    }
    // Both guests took everything as it was: nothing was left to the engine.
    let counters = session.counters()?;
    for name in ["a", "b"] {
        let port = port(&counters, name)?;
        context.figures.exactly(&format!("segments cut for {name}"), port.segments, 0)?;
        context.figures.exactly(&format!("checksums computed for {name}"), port.checksums, 0)?;
        context.figures.exactly(&format!("frames of {name} refused"), bad(port), 0)?;
    }
    session.shut_down()?;
    Ok(())
}

/// Frames of a guest with a header that was not borne out.
fn bad(port: &Port) -> u64 {
    port.drops.iter().filter(|d| matches!(&*d.kind, "tx_bad_header" | "tx_bad_length")).map(|d| d.count).sum()
}

fn software(context: &mut Context<'_>) -> Result<()> {
    for offered in ["none", "csum"] {
        let a = Guest::new(1).full().peer(2).then("iperf-server").then(format!("serve:{MIB}")).then("obey");
        let b = Guest::new(2).full().peer(1).net(&format!("offloads = \"{offered}\"")).then("ping:1").then("obey");
        let mut session = context.boot(&server("offloads-software", &[a, b]))?;
        for name in ["a", "b"] {
            session.result(name, "obey", seconds(240))?;
        }
        let of = |what: &str| format!("{offered}: {what}");
        let [from_b, from_a] = transfer(context, &mut session, offered)?;
        context.figures.at_least(&of("mean bytes of a frame from a"), from_a, 3_000)?;
        context.figures.at_most(&of("mean bytes of a frame from b"), from_b, 1_514)?;
        let sent = session.result("a", "serve", seconds(120))?;
        let received = ask(&mut session, "b", "fetch")?;
        let same = sent["sha256"] == received["sha256"] && sent["sha256"].as_str().is_some_and(|sum| sum.len() == 64);
        context.figures.exactly(&of("files with the right checksum"), usize::from(same), 1)?;
        let counters = session.counters()?;
        let (a, b) = (port(&counters, "a")?, port(&counters, "b")?);
        let least = 2 * (MIB << 20) / SEGMENT * 9 / 10;
        context.figures.at_least(&of("segments cut for b"), b.segments, least)?;
        context.figures.exactly(&of("segments cut for a"), a.segments, 0)?;
        // A segment's checksum is not counted by itself; short frames are left.
        if offered == "none" {
            context.figures.at_least(&of("checksums computed for b"), b.checksums, 1)?;
        } else {
            context.figures.exactly(&of("checksums computed for b"), b.checksums, 0)?;
        }
        context.figures.exactly(&of("frames refused"), bad(a) + bad(b), 0)?;
        session.shut_down()?;
    }
    Ok(())
}
