//! An 82599 as uplink: sidecore with two guests at one end of a wire, Debian with its own driver for the same device at
//! the other.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use control::{Command, Counters, Event, ReportKind};

use super::outside::{OUTSIDE, PEER, ask, behind, boot, connected, guest, nobody_complains, ping, serve, until};
use super::uplink_faults::{device, faults, panic, rebind};
use super::wire::wire;
use crate::boot::{Boot, Check, Shared, Wanted, alone};
use crate::counts::{net, uplinks};
use crate::guests::{Guest, server, with_entries};
use crate::launch::Joined;
use crate::linux::{Linux, Setup as Peer};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Uplink, grub_writes};
use crate::tcp;

/// These scenarios. The one whose device leaves the bus comes last, because the device's complaints do not count after
/// that.
pub fn list() -> Vec<Box<dyn Boot>> {
    type Run = fn(&mut Context<'_>, &mut Joined) -> Result<()>;
    let scenario = |name, about| Scenario::new(name, about, QEMU).longer_on(QEMU);
    let check = |name, about, run: Run| Check::new(scenario(name, about), run);
    let missing = "a port whose device is not there: the report says so, and guests reach each other";
    let panics = "a panic with traffic on the wire: the device masters the bus no more";
    vec![
        Box::new(Shared {
            name: "joined",
            about: "two guests on an 82599, and Debian's ixgbe at the other end of its wire",
            start,
            end: |mut joined| joined.session.shut_down().map(drop),
            checks: vec![
                check("uplink", "guests on an 82599 and Debian's ixgbe: ping, TCP both ways, files both ways", uplink),
                Check::new(
                    Scenario::new(
                        "wire",
                        "malformed, stolen and made-up frames from outside by a packet socket: both guests' pings are answered, and no frame arrives where it must not",
                        QEMU,
                    ),
                    wire as Run,
                ),
                check(
                    "uplink-modules",
                    "the SFP+ module is pulled out, a wrong one and another one are put in: the operator is told each time; `identify` blinks",
                    modules,
                ),
                check("uplink-flood", "a flood of datagrams from outside for one guest: 95 % of the other one's pings are answered and its port drops nothing, 75 % of its own are", flood),
                Check::new(
                    scenario(
                        "uplink-faults",
                        "the link flaps in mid transfer, the machine outside reboots, a guest is killed while the NIC reads its memory",
                    )
                    .taking_turns(),
                    faults as Run,
                ),
                Check::new(
                    scenario(
                        "uplink-rebind",
                        "a guest's driver is taken from its device in mid transfer, also while the NIC holds its frames, and comes back",
                    )
                    .taking_turns(),
                    rebind as Run,
                ),
                Check::new(
                    Scenario::new(
                        "uplink-device",
                        "the NIC's transmit queue hangs, then it leaves the bus while a guest sends, and comes back",
                        QEMU,
                    )
                    .taking_turns(),
                    device as Run,
                ),
            ],
        }),
        alone(
            scenario(
                "uplink-vlan",
                "frames with a guest's own VLAN tag, and of 9,000 bytes, to Debian's ixgbe and back",
            )
            .taking_turns(),
            vlan,
        ),
        alone(Scenario::new("no-uplink", missing, QEMU).taking_turns(), none),
        alone(
            scenario(
                "uplink-steering",
                "an 82599 with several receive queues, for flows and for guests' addresses: ping, TCP both ways",
            )
            .taking_turns(),
            steering,
        ),
        alone(Scenario::new("uplink-panic", panics, QEMU).taking_turns(), panic),
        alone(
            scenario(
                "uplink-backplane",
                "cards for a backplane at both ends: sidecore and Debian's ixgbe negotiate KR, traffic; an end that has KX only, and none",
            )
            .taking_turns(),
            backplane,
        ),
    ]
}

/// TCP from a guest to the machine outside, whose iperf3 serves, and back.
pub(super) fn tcp(context: &mut Context<'_>, session: &mut Session, guest: &str, mib: u64) -> Result<()> {
    for (way, direction) in [("", "out of"), (":reverse", "into")] {
        stream(context, session, guest, &format!("{direction} {guest}"), mib, way)?;
    }
    Ok(())
}

/// A stream of a guest and the machine outside. `what`: which one. `more`: words behind the amount of the action.
fn stream(
    context: &mut Context<'_>,
    session: &mut Session,
    guest: &str,
    what: &str,
    mib: u64,
    more: &str,
) -> Result<()> {
    let before = session.counters()?;
    let iperf = ask(session, guest, &tcp::action(mib, more))?;
    let after = session.counters()?;
    let missed = uplinks(&after, "nic_rx_missed") - uplinks(&before, "nic_rx_missed");
    context.figures.note(&format!("packets that found no room in the NIC {what}"), missed);
    let dropped = tcp::dropped(&before, &after, &[guest])?;
    let arrived = if more.starts_with(":reverse") { tcp::arrived_by_wire } else { tcp::arrived_at_once };
    arrived(&mut context.figures, what, &iperf, mib, dropped)
}

/// Checks that the NIC drops unicasts and multicasts that nobody here wants. It can, because the guests send only under
/// their own addresses, and their drivers have named their multicast groups.
fn left_out(context: &mut Context<'_>, session: &mut Session, peer: &mut Linux) -> Result<()> {
    const ASTRAY: u64 = 50;
    let before = session.counters()?;
    let sent = peer.ask(&format!("astray:{ASTRAY}"), seconds(60))?;
    context.figures.exactly("frames sent to nobody", number(&sent, "sent")?, 2 * ASTRAY)?;
    let filtered = uplinks(&before, "nic_rx_filtered");
    until(session, "nic_rx_filtered", filtered + 2 * ASTRAY)?;
    let after = session.counters()?;
    let left_out = uplinks(&after, "nic_rx_filtered") - filtered;
    context.figures.at_least("frames that the NIC left out", left_out, 2 * ASTRAY)?;
    let missed = uplinks(&after, "rx_not_ours") - uplinks(&before, "rx_not_ours");
    context.figures.exactly("frames for nobody that came in", missed, 0)?;
    for kind in ["nic_promiscuous", "nic_all_multicast"] {
        context.figures.exactly(kind, uplinks(&after, kind), 0)?;
    }
    Ok(())
}

/// Runs pings from each guest, frames that nobody wants, and TCP of each guest both ways.
fn traffic(context: &mut Context<'_>, session: &mut Session, peer: &mut Linux, pings: u64, mib: u64) -> Result<()> {
    for guest in ["a", "b"] {
        ping(context, session, guest, pings)?;
    }
    left_out(context, session, peer)?;
    peer.ask("iperf-server", seconds(60))?;
    for guest in ["a", "b"] {
        tcp(context, session, guest, mib)?;
    }
    Ok(())
}

/// Size of the large file in MiB.
fn file(context: &Context<'_>) -> u32 {
    if context.full { 1024 } else { 256 }
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Joined> {
    let a = if wanted.any(&["uplink-rebind"]) { guest(1).memory_mib(256) } else { guest(1) };
    let memory_mib = OUTSIDE.memory_mib + if wanted.any(&["uplink"]) { file(context) } else { 0 };
    let outside = Peer { memory_mib, reboots: wanted.any(&["uplink-faults"]), ..OUTSIDE };
    let mut setup = connected("uplink", &[a, guest(2)]);
    setup.grub = firmware_lets_it_sleep();
    let mut joined = boot(context, &setup, &outside, &["a", "b"], false)?;
    let woken = "PCI function 01:00.0 was in power state D3hot; it is at full power now";
    ensure!(joined.session.console()?.contains(woken), "the report does not say that the NIC was woken");
    for guest in ["a", "b"] {
        let ping = ask(&mut joined.session, guest, "ping:20")?;
        ensure!(
            number(&ping, "received")? == 20,
            "the machine outside does not answer guest {guest} each time: {ping}"
        );
    }
    Ok(joined)
}

/// GRUB's commands that leave the NIC, which is 01:00.0, in D3hot: it answers for its configuration space only, and waking it is a reset,
/// after which it has no base addresses. PMCSR is the second register of the model's first capability.
fn firmware_lets_it_sleep() -> Vec<String> {
    grub_writes(1 << 8, 0x44, 3).to_vec()
}

fn uplink(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let (pings, mib) = if context.full { (500, 256) } else { (50, 32) };
    let file = file(context);
    let Joined { session, nic, peer } = joined;
    nic.bus_master(true, seconds(20))?;
    traffic(context, session, peer, pings, mib)?;
    let sent = serve(peer, file.into())?;
    session.tell("a", "serve:32")?;
    session.tell("b", "hash")?;
    let received = session.result("b", "hash", seconds(1200))?;
    context.figures.same_file(&format!("intact: a file of {file} MiB into b"), &sent, &received)?;
    let sent = session.result("a", "serve", seconds(120))?;
    let received = peer.ask("hash:10.0.0.1", seconds(300))?;
    context.figures.same_file("intact: a file of 32 MiB out of a", &sent, &received)?;

    let counters = session.counters()?;
    let figures = &mut context.figures;
    let segments = u64::from(file) * (1 << 20) / 1448;
    figures.at_least("packets in", uplinks(&counters, "rx_packets"), segments)?;
    // The guests send unsegmented frames, and the NIC segments them. So it counts more packets than it was given.
    figures.at_least("packets out, as the NIC counts them", uplinks(&counters, "nic_tx_packets"), (32 << 20) / 1448)?;
    let mean = uplinks(&counters, "tx_bytes") / uplinks(&counters, "tx_packets").max(1);
    figures.at_least("mean bytes of a packet given to the NIC", mean, 3_000)?;
    figures.note("segments cut before the NIC", uplinks(&counters, "tx_segments"));
    figures.exactly("malformed packets in", uplinks(&counters, "rx_malformed"), 0)?;
    figures.exactly("Mb/s of the link", uplinks(&counters, "link_mbits"), 10_000)?;
    figures.exactly("recoveries of the NIC", uplinks(&counters, "nic_recoveries"), 0)?;
    figures.exactly("packets out that were dropped", uplinks(&counters, "tx_dropped"), 0)?;
    figures.note("packets that found no room in the NIC", uplinks(&counters, "nic_rx_missed"));
    figures.note("packets refused by the NIC", uplinks(&counters, "tx_refused"));
    nobody_complains(context, nic, "sidecore")?;
    nobody_complains(context, &peer.nic, "ixgbe")
}

/// Modules in their order, and the beginning of what is said of the port then.
const MODULES: [(&str, &str, u64); 4] = [
    ("none", "no SFP+ module in the cage", 0),
    ("ten-t", "this module is not supported by the NIC: module without a known code, SOMEBODY SB-10T", 0),
    ("passive", "SFP+ module passive copper cable, CABLES DAC-3M", 10_000),
    ("sr", "SFP+ module 10GBASE-SR, Intel Corp MODEL-SR", 10_000),
];

/// Waits until the uplink's port is said to be so, and has this rate in Mb/s. Returns the uplink's name.
fn until_port(session: &mut Session, says: &str, rate: u64) -> Result<String> {
    let deadline = Instant::now() + seconds(60);
    loop {
        let counters = session.counters()?;
        let uplink = counters.engines.iter().flat_map(|engine| &engine.uplinks).next().context("no uplink")?;
        if uplink.port.starts_with(says) && uplink.count("link_mbits") == rate {
            return Ok(uplink.name.clone());
        }
        let (port, rate) = (&uplink.port, uplink.count("link_mbits"));
        ensure!(Instant::now() < deadline, "{port:?}, {rate} Mb/s, and {says:?} is wanted");
        thread::sleep(Duration::from_millis(200));
    }
}

fn modules(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let Joined { session, nic, .. } = joined;
    let console = session.console()?;
    let reported = "SFP+ module 10GBASE-SR, Intel Corp MODEL-SR";
    ensure!(console.contains(reported), "the report does not have {reported:?}");
    let mut name = String::new();
    for (module, says, rate) in MODULES {
        nic.module(module, 10_000)?;
        name = until_port(session, says, rate).with_context(|| format!("with the module {module}"))?;
        ensure!(session.console()?.contains(says), "the console does not have {says:?}");
    }
    context.figures.exactly("modules that were told", MODULES.len(), 4)?;
    ping(context, session, "a", 20)?;
    let before = nic.lights()?;
    session.ask(Command::Identify { uplink: name, seconds: 60 }, seconds(20))?;
    let deadline = Instant::now() + seconds(20);
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        ensure!(Instant::now() < deadline, "the light does not blink: {seen:x?}, before {before:x}");
        let now = nic.lights()?;
        if now != before {
            seen.insert(now);
        }
        thread::sleep(Duration::from_millis(50));
    }
    context.figures.exactly("states of the light that blinks", seen.len(), 2)?;
    nobody_complains(context, nic, "sidecore")
}

/// What the other end of the backplane offers (`None`: it is gone), what is said of the port then, and the rate in Mb/s.
const BACKPLANES: [(Option<&str>, &str, u64); 4] = [
    (Some("kx"), "backplane: offers KR KX4 KX", 1_000),
    (None, "backplane: offers KR KX4 KX; the other end does not negotiate", 0),
    (Some("kx4,kx"), "backplane: offers KR KX4 KX", 10_000),
    (Some("kr,kx4,kx"), "backplane: offers KR KX4 KX", 10_000),
];

fn backplane(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (pings, mib) = if context.full { (500, 256) } else { (50, 16) };
    let mut setup = connected("uplink-backplane", &[guest(1), guest(2)]);
    setup.uplink = Uplink::X520Backplane;
    let outside = Peer { backplane: true, ..OUTSIDE };
    let Joined { mut session, mut nic, mut peer } = boot(context, &setup, &outside, &["a", "b"], false)?;
    let console = session.console()?;
    for reported in ["82599 for a backplane, KR", "backplane: offers KR KX4 KX"] {
        ensure!(console.contains(reported), "the report does not have {reported:?}");
    }
    peer.ask("carrier:on", seconds(60))?;
    let link = peer.ask("link", seconds(60))?;
    context.figures.exactly("Mb/s of the link, by ixgbe", number(&link, "speed")?, 10_000)?;
    let modes = link["modes"].as_str().unwrap_or_default();
    ensure!(modes.contains("10000baseKR/Full"), "ixgbe has {modes:?} for the port");
    traffic(context, &mut session, &mut peer, pings, mib)?;

    for (offers, says, rate) in BACKPLANES {
        match offers {
            Some(offers) => {
                nic.cable(true)?;
                nic.offers(offers)?;
            }
            None => nic.cable(false)?,
        }
        until_port(&mut session, says, rate)?;
    }
    context.figures.exactly("other ends that were told", BACKPLANES.len(), 4)?;
    ping(context, &mut session, "a", 20)?;
    nobody_complains(context, &nic, "sidecore")?;
    nobody_complains(context, &peer.nic, "ixgbe")?;
    session.shut_down().map(drop)
}

fn none(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    const PINGS: u64 = 20;
    for (device, says) in
        [("first", "no NIC for which there is a driver"), ("03:1f.7", "there is no device at 03:1f.7")]
    {
        let guests = [Guest::new(1).peer(2).then(format!("ping:{PINGS}")).then("wait"), Guest::new(2).then("wait")];
        let mut session = context.boot(&behind(server("no-uplink", &guests), device))?;
        let ping = session.result("a", "ping", seconds(240))?;
        context.figures.exactly("pings answered", number(&ping, "received")?, PINGS)?;
        let said = session.unread().iter().filter(|event| match event {
            Event::Report(entry) => entry.kind == ReportKind::Warning && entry.text.contains(says),
            _ => false,
        });
        context.figures.exactly(&format!("warnings for {device:?}"), said.count(), 1)?;
        session.shut_down()?;
    }
    Ok(())
}

fn steering(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (pings, mib) = if context.full { (200, 256) } else { (30, 16) };
    for (word, says) in
        [("flows", "4 receive queues for flows"), ("addresses", "3 receive queues for guests' addresses")]
    {
        let mut setup = server("uplink-steering", &[guest(1), guest(2)]);
        setup.uplink = Uplink::X520;
        let setup = with_entries(setup, &format!("[[port]]\ndevice = \"first\"\nsteering = \"{word}\"\n\n"));
        let Joined { mut session, nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a", "b"], false)?;
        let said = |event: &&Event| matches!(event, Event::Report(entry) if entry.text.contains(says));
        let said = session.unread().iter().filter(said).count();
        context.figures.exactly(&format!("sentences: {says}"), said, 1)?;
        traffic(context, &mut session, &mut peer, pings, mib)?;
        let counters = session.counters()?;
        let (all, steered) = (uplinks(&counters, "rx_packets"), uplinks(&counters, "rx_steered"));
        context.figures.note("packets in", all);
        // By addresses: all frames except broadcasts and multicasts. By flows: depends on the hash of four connections
        // and the pings.
        let least = if word == "addresses" { all * 9 / 10 } else { pings };
        context.figures.at_least("of these by another queue than the first", steered, least)?;
        nobody_complains(context, &nic, "sidecore")?;
        session.shut_down()?;
    }
    Ok(())
}

/// The number of the VLAN.
const VLAN: u16 = 7;
/// The rules of the uplink and of the guests: tagged in that VLAN, untagged in another.
const RULES: &str = "vlans = [7]\nnative = 20";
/// Payload of a large frame in bytes.
const JUMBO: u16 = 9000;
/// Pings of each guest in a round during a flood.
const FLOOD_PINGS: u64 = 20;

fn vlan(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let pings = if context.full { 200 } else { 30 };
    let mut setup = server("uplink-vlan", &[1, 2].map(|n| guest(n).mtu(JUMBO).net(RULES)));
    setup.uplink = Uplink::X520;
    // The device is behind the only root port, on the first bus after the root bus.
    let setup = with_entries(setup, &format!("[[port]]\ndevice = \"01:00.0\"\n{RULES}\n\n"));
    let Joined { mut session, nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a", "b"], true)?;
    peer.ask(&format!("mtu:{JUMBO}"), seconds(60))?;
    peer.ask("carrier:on:60", seconds(120))?;
    // 20 bytes of IPv4 and 8 of ICMP fill a frame.
    let mut pinged = |session: &mut Session, what: &str, subnet: u8, bytes: u16| -> Result<()> {
        for guest in ["a", "b"] {
            let ping = ask(session, guest, &format!("ping:{pings}:10.0.{subnet}.{PEER}:{bytes}"))?;
            let answered = number(&ping, "received")?;
            context.figures.exactly(&format!("pings {what} of {guest} answered"), answered, pings)?;
        }
        Ok(())
    };
    pinged(&mut session, "of 9,000 bytes", 0, JUMBO - 28)?;
    peer.ask(&format!("vlan:{VLAN}:10.0.7.{PEER}/24"), seconds(60))?;
    for (guest, number) in [("a", 1), ("b", 2)] {
        ask(&mut session, guest, &format!("vlan:{VLAN}:10.0.7.{number}/24"))?;
    }
    pinged(&mut session, "of 64 bytes, tagged", 7, 56)?;
    pinged(&mut session, "of 9,000 bytes, tagged", 7, JUMBO - 28)?;
    peer.ask("iperf-server", seconds(60))?;
    stream(context, &mut session, "a", "out of a, tagged", 8, &format!("::10.0.7.{PEER}"))?;

    let wire = nic.wire()?;
    let tag = |bytes: &[u8]| {
        (bytes.get(12..14) == Some(&[0x81, 0])).then(|| u16::from_be_bytes([bytes[14], bytes[15]]) & 0xfff)
    };
    let from = |mac: [u8; 6]| wire.iter().filter(move |frame| frame.bytes.get(6..12) == Some(&mac));
    let least = 2 * pings;
    for (whose, mac) in [("a", Guest::new(1).mac()), ("b", Guest::new(2).mac())] {
        let tagged = from(mac).filter(|frame| tag(&frame.bytes) == Some(VLAN));
        context.figures.at_least(&format!("tagged frames of {whose} on the wire"), tagged.count(), least)?;
        let large =
            from(mac).filter(|frame| frame.bytes.len() == usize::from(JUMBO) + 18 && tag(&frame.bytes) == Some(VLAN));
        context.figures.at_least(&format!("tagged frames of 9,000 bytes of {whose}"), large.count(), least / 2)?;
    }
    let back = from(OUTSIDE.mac()).filter(|frame| tag(&frame.bytes) == Some(VLAN));
    context.figures.at_least("tagged frames from outside", back.count(), 2 * least)?;
    nobody_complains(context, &nic, "sidecore")?;
    nobody_complains(context, &peer.nic, "ixgbe")?;
    session.shut_down().map(drop)
}

fn flood(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let (rounds, datagrams) = if context.full { (6, 20_000) } else { (1, 2000) };
    let Joined { session, nic, peer } = joined;
    ping(context, session, "a", 20)?;
    ask(session, "a", "iperf-server")?;
    let before = session.counters()?;
    peer.ask(&format!("flood:3600:{}", Guest::new(1).address()), seconds(60))?;
    let came = |counters: &Counters| uplinks(counters, "rx_packets") - uplinks(&before, "rx_packets");
    let begun = came(&session.counters_when("5,000 datagrams have come", |counters| came(counters) >= 5000)?);
    // Pings reach the flooded guest, and the other guest, which shares the engine and the wire with it, until enough of
    // the flood has come.
    let (mut pinged, mut other, mut flooded, mut during) = (0, 0, 0, 0);
    for round in 0.. {
        if round >= rounds && during >= datagrams {
            break;
        }
        ensure!(round < 40, "{during} datagrams came during {pinged} pings, expected at least {datagrams}");
        session.tell("b", &format!("ping:{FLOOD_PINGS}"))?;
        session.tell("a", &format!("ping:{FLOOD_PINGS}"))?;
        other += number(&session.result("b", "ping", seconds(300))?, "received")?;
        flooded += number(&session.result("a", "ping", seconds(300))?, "received")?;
        pinged += FLOOD_PINGS;
        during = came(&session.counters()?) - begun;
    }
    context.figures.at_least("datagrams that came meanwhile", during, datagrams)?;
    let counters = session.counters()?;
    let dropped = net(&counters, "b")?.all_dropped() - net(&before, "b")?.all_dropped();
    context.figures.exactly("frames of the other guest that its port dropped", dropped, 0)?;
    let missed = uplinks(&counters, "nic_rx_missed") - uplinks(&before, "nic_rx_missed");
    context.figures.note("packets that found no room in the NIC", missed);
    context.figures.at_least("pings of the other guest answered", other, pinged - pinged / 20)?;
    context.figures.at_least("pings of the flooded guest answered", flooded, pinged - pinged / 4)?;
    let sent = peer.number("flooded", "packets", seconds(300))?;
    context.figures.note("datagrams of the flood", sent);
    for guest in ["a", "b"] {
        ping(context, session, guest, 20)?;
    }
    nobody_complains(context, nic, "sidecore")
}
