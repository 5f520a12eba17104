//! Two guests that talk to each other through the engine, a guest with two virtual CPUs, and two guests with fewer
//! offloads.

use anyhow::{Result, ensure};
use control::{Command, Counters};

use super::{offloads, smp};
use crate::boot::{Boot, Check, Shared, Wanted};
use crate::counts::{all_exits, busy_turns, exits_of_vcpus, net};
use crate::guests::{Guest, server};
use crate::platform::{ALSO_NESTED, NESTED, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::tcp;

/// Scenarios that need iperf3 and room for a file in guests a and b.
const HEAVY: [&str; 3] = ["two-guests-iperf", "offloads", "offloads-software"];

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    type Run = fn(&mut Context<'_>, &mut Session) -> Result<()>;
    let check = |name, about, platforms, run: Run| Check::new(Scenario::new(name, about, platforms), run);
    let pings = "1,000 pings from one guest to the other, none lost";
    vec![Box::new(Shared {
        name: "two-guests",
        about: "a and b with iperf3; c has two virtual CPUs; d is offered no offload, e checksums alone",
        start,
        end: |mut session| session.shut_down().map(drop),
        checks: vec![
            Check::new(Scenario::new("two-guests-ping", pings, ALSO_NESTED).checked_on(QEMU), ping),
            Check::new(
                Scenario::new("two-guests-iperf", "TCP both ways, and a file of 256 MiB that arrives intact", QEMU)
                    .taking_turns(),
                iperf,
            ),
            check(
                "offloads",
                "TCP both ways between two guests with each offload off and on: rows of segments stay whole",
                QEMU,
                offloads::switched,
            ),
            check(
                "offloads-software",
                "TCP and a file between a guest with all offloads and one with none, or checksums alone",
                QEMU,
                offloads::software,
            ),
            Check::new(
                Scenario::new(
                    "smp-guest",
                    "two virtual CPUs, both at work; one goes offline and comes back",
                    ALSO_NESTED,
                )
                .rarely_on(NESTED),
                smp_guest,
            ),
        ],
    })]
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let pair = |number, peer| {
        let guest = Guest::new(number).peer(peer).then("obey");
        match (wanted.any(&["two-guests-iperf"]), wanted.any(&HEAVY)) {
            (true, _) => guest.full().memory_mib(448),
            (_, true) => guest.full(),
            _ => guest,
        }
    };
    let mut guests = Vec::new();
    if wanted.any(&["two-guests-ping"]) || wanted.any(&HEAVY) {
        guests.extend([pair(1, 2), pair(2, 1)]);
    }
    if wanted.any(&["smp-guest"]) {
        guests.push(Guest::new(3).vcpus(2).then("obey"));
    }
    if wanted.any(&["offloads-software"]) {
        guests.extend(offloads::less_offered(4));
    }
    let mut session = context.boot(&server("two-guests", &guests))?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

fn ping(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.ask(Command::Watch(true), seconds(10))?;
    let ping = session.act("a", "ping:1000", seconds(240))?;
    session.ask(Command::Watch(false), seconds(10))?;
    let figures = &mut context.figures;
    figures.exactly("pings sent", number(&ping, "sent")?, 1000)?;
    figures.exactly("pings answered", number(&ping, "received")?, 1000)?;
    figures.note("average round trip, us", number(&ping, "avg_us")?);
    let counters = session.counters()?;
    for name in ["a", "b"] {
        let net = net(&counters, name)?;
        figures.at_least(&format!("packets to {name}"), net.rx_packets, 1000)?;
        figures.at_least(&format!("packets from {name}"), net.tx_packets, 1000)?;
        figures.at_least(&format!("exits of {name}"), all_exits(&counters, name), 1000)?;
        let kicks = net.kicks.saturating_sub(net.commands);
        figures.exactly(&format!("kicks of {name} but for commands: its queues are polled"), kicks, 0)?;
    }
    figures.at_least("busy turns of the engine", busy_turns(&counters), 1000)?;
    let watched =
        |counters: &Counters| counters.engines.first().and_then(|engine| engine.watched.clone()).unwrap_or_default();
    let seen = watched(&counters);
    figures.at_least("visits seen while the engine was watched", seen.visits.iter().sum::<u64>(), 1000)?;
    figures.at_least("interrupts seen then", seen.notified, 1000)?;
    session.act("a", "ping:20", seconds(60))?;
    let unseen = u64::from(watched(&session.counters()?) != seen);
    context.figures.exactly("changes of these counts when it is watched no longer", unseen, 0)
}

fn iperf(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    const MIB: u64 = 256;
    session.act("a", "iperf-server", seconds(60))?;
    let before = net(&session.counters()?, "a")?;
    for (way, direction) in [("", "out"), (":reverse", "in")] {
        let begin = session.counters()?;
        let iperf = session.act("b", &tcp::action(128, way), seconds(240))?;
        let dropped = tcp::dropped(&begin, &session.counters()?, &["a", "b"])?;
        ensure!(iperf["direction"] == direction, "expected the result for {direction:?}, got {iperf}");
        tcp::arrived_at_once(&mut context.figures, direction, &iperf, 128, dropped)?;
    }
    let sent = session.act("a", &format!("serve:{MIB}"), seconds(120))?;
    let received = session.act("b", "fetch", seconds(300))?;
    context.figures.at_least("file bytes", number(&received, "bytes")?, MIB << 20)?;
    context.figures.same_file("files with the right checksum", &sent, &received)?;
    let after = net(&session.counters()?, "a")?;
    // Each packet has up to 64 KiB: between two guests nothing is segmented.
    context.figures.at_least("packets to a", after.rx_packets - before.rx_packets, 1_000)?;
    context.figures.at_least("packets from a", after.tx_packets - before.tx_packets, 1_000)
}

fn smp_guest(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let counters = smp::both_at_work(context, session, "c")?;
    let exits = exits_of_vcpus(&counters, "c");
    context.figures.exactly("virtual CPUs counted", exits.len(), 2)?;
    for (vcpu, exits) in exits.into_iter().enumerate() {
        context.figures.at_least(&format!("exits of virtual CPU {vcpu}"), exits, 10)?;
    }
    Ok(())
}
