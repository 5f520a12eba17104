//! What a guest's neighbours lose while it has the engine work much for few requests. `kernel/net/src/tests/attackers.rs` measures
//! the same in virtual time, with more attackers.

use anyhow::Result;

use crate::boot::{Boot, alone};
use crate::counts::net;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

/// Requests of the neighbours during each attack.
const REQUESTS: u64 = 3000;
/// Broadcasts of the attacker. More than the storm limit lets through while the neighbours ask.
const BROADCASTS: u64 = 200_000;
/// MiB that the attacker sends in small segments, and the bytes of one. Linux asks for no smaller ones.
const MIB: u64 = 8;
const MSS: u64 = 88;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest floods broadcasts, and TCP that the engine cuts into small segments: its neighbours' requests are all answered, none again";
    vec![alone(Scenario::new("attackers", about, QEMU).checked_on(QEMU), attackers)]
}

/// Has guest a ask guest b, and checks that each request was answered the first time.
fn neighbours(context: &mut Context<'_>, session: &mut Session, when: &str) -> Result<()> {
    let udp = session.act("a", &format!("udp:{REQUESTS}"), seconds(240))?;
    let figures = &mut context.figures;
    figures.exactly(&format!("{when}: requests answered"), number(&udp, "transactions")?, REQUESTS)?;
    figures.exactly(&format!("{when}: requests repeated"), number(&udp, "again")?, 0)
}

fn attackers(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let still = |n| Guest::new(n).kernel_option("ipv6.disable=1");
    let guests = [
        still(1).full().peer(2).then("obey"),
        still(2).full().then("udp-server").then("obey"),
        still(3).full().peer(4).then("obey"),
        // It takes no segments, so the engine cuts them for it.
        still(4).full().net("offloads = \"none\"").then("iperf-server").then("obey"),
    ];
    let mut session = context.boot(&server("attackers", &guests))?;
    session.all_obey(["a", "b", "c", "d"])?;
    neighbours(context, &mut session, "without an attack")?;

    session.tell("c", &format!("shower:{BROADCASTS}"))?;
    neighbours(context, &mut session, "broadcasts")?;
    session.result("c", "shower", seconds(240))?;
    let counters = session.counters()?;
    let c = net(&counters, "c")?;
    context.figures.at_least("broadcasts above the storm limit", c.dropped("tx_storm"), 1)?;
    context.figures.at_least("broadcasts that the engine took", c.tx_packets, BROADCASTS)?;

    session.tell("c", &format!("iperf:{MIB}M:::{MSS}"))?;
    neighbours(context, &mut session, "small segments")?;
    let tcp = session.result("c", "iperf", seconds(240))?;
    context.figures.at_least("bytes in small segments", number(&tcp, "bytes")?, MIB << 20)?;
    let segments = net(&session.counters()?, "d")?.rx_packets;
    context.figures.at_least("segments for d", segments, (MIB << 20) / MSS)?;
    session.shut_down().map(drop)
}
