//! Packed rings, rings that are resized while frames go, and everything else that a network device offers, judged by Linux's
//! driver.

use anyhow::{Context as _, Result, ensure};
use engine::shared::Features;

use crate::cases::network::number;
use crate::guests::{Guest, server};
use crate::scenario::{Context, QEMU, Scenario, seconds};

/// What there is that Linux's driver does not take: guests are not offered the one, and it does not know the other.
const NOT_TAKEN: Features = Features::IN_ORDER.union(Features::NET_CTRL_RX_EXTRA);
/// Changes of the rings' sizes.
const RESIZES: u64 = 12;
/// Bytes of the file, in MiB.
const MIB: u64 = 8;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![Scenario {
        name: "packed-rings",
        about: "two guests with packed rings, and one with split rings: all features taken, ping, TCP both ways, a file, rings resized under traffic",
        platforms: QEMU,
        slow_on_bochs: false,
        run: packed,
    }]
}

fn packed(context: &mut Context<'_>) -> Result<()> {
    for requests in ["poll", "notify"] {
        for both in [true, false] {
            exchange(context, requests, both)?;
        }
    }
    Ok(())
}

/// Guest a has packed rings, and b if `both` have.
fn exchange(context: &mut Context<'_>, requests: &str, both: bool) -> Result<()> {
    let guest = |number, packed| Guest::new(number).full().requests(requests).net(&format!("packed = {packed}"));
    let a = guest(1, true).peer(2).then("features").then("iperf-server").then(format!("serve:{MIB}")).then("wait");
    let b = guest(2, both).peer(1).then("features").then("ping:200").then("ping:50:10.0.0.1:1400");
    let b = b.then("iperf:16M").then("iperf:16M:reverse").then("fetch").then(format!("resize:{RESIZES}"));
    let b = b.then("ping:50").then("wait");
    let mut session = context.boot(&server("packed-rings", &[a, b]))?;
    let of = |what: &str| format!("{requests}, {}: {what}", if both { "both" } else { "one" });
    for (name, wanted) in [("a", true), ("b", both)] {
        let features = session.result(name, "features", seconds(240))?;
        let bits = features["bits"].as_str().with_context(|| format!("no bits in {features}"))?;
        ensure!(bits.len() == 64, "the features of {name} are {bits}");
        let taken = bits.bytes().rev().fold(0, |word, bit| word << 1 | u64::from(bit == b'1'));
        let mut offered = Features::all().difference(NOT_TAKEN);
        offered.set(Features::RING_PACKED, wanted);
        ensure!(
            taken == offered.bits(),
            "{name} is offered {offered:?} and takes {:?}",
            Features::from_bits_retain(taken)
        );
        context
            .figures
            .note(&of(&format!("features of {name}, all that it is offered")), u64::from(taken.count_ones()));
    }
    for count in [200, 50] {
        let ping = session.result("b", "ping", seconds(240))?;
        context.figures.exactly(&of("pings answered"), number(&ping, "received")?, count)?;
    }
    for direction in ["out", "in"] {
        let tcp = session.result("b", "iperf", seconds(240))?;
        context.figures.at_least(&of(&format!("iperf bytes, {direction}")), number(&tcp, "bytes")?, 8_000_000)?;
        context.figures.note(&of(&format!("bit/s, {direction}")), number(&tcp, "bits_per_second")?);
    }
    let served = session.result("a", "serve", seconds(120))?;
    let fetched = session.result("b", "fetch", seconds(240))?;
    let same = served["sha256"] == fetched["sha256"] && served["sha256"].as_str().is_some_and(|sum| sum.len() == 64);
    context.figures.exactly(&of("files with the right checksum"), usize::from(same), 1)?;
    let resize = session.result("b", "resize", seconds(240))?;
    context.figures.exactly(&of("rings resized under traffic"), number(&resize, "resized")?, RESIZES)?;
    context.figures.exactly(&of("frames went on both ways"), number(&resize, "alive")?, RESIZES)?;
    let ping = session.result("b", "ping", seconds(240))?;
    context.figures.exactly(&of("pings answered afterwards"), number(&ping, "received")?, 50)?;
    let counters = session.counters()?;
    for name in ["a", "b"] {
        let guest = counters.guest(name).with_context(|| format!("no counters of {name}"))?;
        let faults: u64 = guest.ports.iter().map(|port| port.ring_errors).sum();
        context.figures.exactly(&of(&format!("rules of the ring that {name} broke")), faults, 0)?;
    }
    session.shut_down()?;
    Ok(())
}
