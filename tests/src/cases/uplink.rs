//! An 82599 as the way out: sidecore with two guests at one end of a wire, Debian with its own driver for the same device
//! at the other.

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Counters, Event, ReportKind};
use serde_json::Value;

use crate::cases::network::number;
use crate::guests::{Guest, server, with_entries};
use crate::linux::{Linux, Setup as Peer};
use crate::machine::{Content, Joined, Setup, Uplink};
use crate::nic::Nic;
use crate::scenario::{Context, QEMU, Scenario, seconds};
use crate::session::Session;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    let scenario = |name, about, run| Scenario { name, about, platforms: QEMU, slow_on_bochs: false, run };
    vec![
        scenario("uplink", "guests on an 82599 and Debian's ixgbe: ping, TCP both ways, files both ways", uplink),
        scenario(
            "uplink-vlan",
            "frames with a guest's own VLAN tag, and of 9,000 bytes, to Debian's ixgbe and back",
            vlan,
        ),
        scenario(
            "no-uplink",
            "a port whose device is not there: the report says so, and guests reach each other",
            none,
        ),
        scenario(
            "uplink-steering",
            "an 82599 with several receive queues, for flows and for guests' addresses: ping, TCP both ways",
            steering,
        ),
        scenario("uplink-flood", "a flood of datagrams from outside for one guest: both stay reachable", flood),
    ]
}

/// The other machine's number, by which it has its address.
const PEER: u8 = 9;

/// Debian at the other end.
pub(super) const OUTSIDE: Peer =
    Peer { name: "outside", number: PEER, cpus: 1, memory_mib: 512, reboots: false, options: "" };

/// A guest that does as it is told.
pub(super) fn guest(number: usize) -> Guest {
    Guest::new(number).full().peer(PEER.into()).then("obey")
}

/// A server with an 82599 that these guests share.
pub(super) fn connected(name: &str, guests: &[Guest]) -> Setup {
    let mut setup = server(name, guests);
    setup.uplink = Uplink::X520;
    behind(setup, "first")
}

/// With a `[[port]]` that names a device so.
fn behind(mut setup: Setup, device: &str) -> Setup {
    for module in &mut setup.modules {
        if let Content::Text(config) = &mut module.content {
            config.insert_str(0, &format!("[[port]]\ndevice = \"{device}\"\n\n"));
        }
    }
    setup
}

/// Has a guest do something and waits for the answer.
pub(super) fn ask(session: &mut Session, guest: &str, action: &str) -> Result<Value> {
    tell(session, guest, action)?;
    session.result(guest, action.split(':').next().unwrap_or(action), seconds(300))
}

/// Has a guest do something.
pub(super) fn tell(session: &mut Session, guest: &str, action: &str) -> Result<()> {
    session.ask(Command::Input { guest: guest.to_owned(), text: format!("{action}\n") }, seconds(20)).map(drop)
}

/// Boots both machines, and waits until everybody does as told.
pub(super) fn boot(
    context: &mut Context<'_>,
    setup: &Setup,
    peer: &Peer,
    guests: &[&str],
    capture: bool,
) -> Result<Joined> {
    let mut joined = context.boot_joined(setup, peer, capture)?;
    for guest in guests {
        joined.session.result(guest, "obey", seconds(240))?;
    }
    Ok(joined)
}

/// What was counted on the uplink under that name.
pub(super) fn counted(counters: &Counters, kind: &str) -> u64 {
    counters.engines.iter().flat_map(|engine| &engine.uplinks).map(|uplink| uplink.count(kind)).sum()
}

/// Waits until a counter of the uplink has reached a value.
pub(super) fn until(session: &mut Session, kind: &str, least: u64) -> Result<()> {
    for _ in 0..600 {
        if counted(&session.counters()?, kind) >= least {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    bail!("{kind} did not become {least} within two minutes")
}

/// Holds the device's complaints of its driver to none.
pub(super) fn nobody_complains(context: &mut Context<'_>, nic: &Nic, whose: &str) -> Result<()> {
    let complaints = nic.complaints()?;
    ensure!(complaints.is_empty(), "the device has something against {whose}: {complaints:#?}");
    context.figures.exactly(&format!("complaints of the device about {whose}"), complaints.len(), 0)
}

/// Holds the answers of the machine outside to some pings from a guest to nearly all: a machine that is busy with something
/// else may answer the last ones late.
pub(super) fn ping(context: &mut Context<'_>, session: &mut Session, guest: &str, count: u64) -> Result<()> {
    let ping = ask(session, guest, &format!("ping:{count}"))?;
    context.figures.at_least(&format!("pings of {guest} answered"), number(&ping, "received")?, count - count / 10)
}

/// TCP from a guest to the machine outside, whose iperf3 serves, and back.
fn tcp(context: &mut Context<'_>, session: &mut Session, guest: &str, time: u64) -> Result<()> {
    for (way, direction) in [("", "out of"), (":reverse", "into")] {
        let iperf = ask(session, guest, &format!("iperf:{time}{way}"))?;
        context.figures.at_least(&format!("bytes {direction} {guest}"), number(&iperf, "bytes")?, 1_000_000 * time)?;
        context.figures.note(&format!("bit/s {direction} {guest}"), number(&iperf, "bits_per_second")?);
        context.figures.note(&format!("segments sent again {direction} {guest}"), number(&iperf, "retransmits")?);
    }
    Ok(())
}

/// Holds two checksums of a file to the same.
pub(super) fn same_file(context: &mut Context<'_>, what: &str, sent: &Value, received: &Value) -> Result<()> {
    let same = sent["sha256"] == received["sha256"] && sent["sha256"].as_str().is_some_and(|sum| sum.len() == 64);
    context.figures.exactly(&format!("intact: {what}"), usize::from(same), 1)
}

pub(super) fn serve(machine: &mut Linux, mebibytes: u64) -> Result<Value> {
    machine.ask(&format!("serve:{mebibytes}"), seconds(300))
}

/// What is for nobody here stays with the NIC, unicasts and multicasts: the guests send under their own addresses only, and their
/// drivers have said which groups they are in.
fn left_out(context: &mut Context<'_>, session: &mut Session, peer: &mut Linux) -> Result<()> {
    const ASTRAY: u64 = 50;
    let before = session.counters()?;
    let sent = peer.ask(&format!("astray:{ASTRAY}"), seconds(60))?;
    context.figures.exactly("frames sent to nobody", number(&sent, "sent")?, 2 * ASTRAY)?;
    let filtered = counted(&before, "nic_rx_filtered");
    until(session, "nic_rx_filtered", filtered + 2 * ASTRAY)?;
    let after = session.counters()?;
    let left_out = counted(&after, "nic_rx_filtered") - filtered;
    context.figures.at_least("frames that the NIC left out", left_out, 2 * ASTRAY)?;
    let missed = counted(&after, "rx_not_ours") - counted(&before, "rx_not_ours");
    context.figures.exactly("frames for nobody that came in", missed, 0)?;
    for kind in ["nic_promiscuous", "nic_all_multicast"] {
        context.figures.exactly(kind, counted(&after, kind), 0)?;
    }
    Ok(())
}

/// Pings from each guest, frames that are for nobody, and TCP of each both ways.
fn traffic(context: &mut Context<'_>, session: &mut Session, peer: &mut Linux, pings: u64, time: u64) -> Result<()> {
    for guest in ["a", "b"] {
        ping(context, session, guest, pings)?;
    }
    left_out(context, session, peer)?;
    peer.ask("iperf-server", seconds(60))?;
    for guest in ["a", "b"] {
        tcp(context, session, guest, time)?;
    }
    Ok(())
}

fn uplink(context: &mut Context<'_>) -> Result<()> {
    let (pings, time, file) = if context.full { (500, 10, 1024) } else { (50, 2, 256) };
    let setup = connected("uplink", &[guest(1), guest(2)]);
    let outside = Peer { memory_mib: 512 + file, ..OUTSIDE };
    let Joined { mut session, mut nic, mut peer } = boot(context, &setup, &outside, &["a", "b"], false)?;
    nic.bus_master(true, seconds(20))?;
    traffic(context, &mut session, &mut peer, pings, time)?;
    let sent = serve(&mut peer, file.into())?;
    tell(&mut session, "a", "serve:32")?;
    tell(&mut session, "b", "hash")?;
    let received = session.result("b", "hash", seconds(1200))?;
    same_file(context, &format!("a file of {file} MiB into b"), &sent, &received)?;
    let sent = session.result("a", "serve", seconds(120))?;
    let received = peer.ask("hash:10.0.0.1", seconds(300))?;
    same_file(context, "a file of 32 MiB out of a", &sent, &received)?;

    let counters = session.counters()?;
    let figures = &mut context.figures;
    let segments = u64::from(file) * (1 << 20) / 1448;
    figures.at_least("packets in", counted(&counters, "rx_packets"), segments)?;
    // The guests hand over rows of segments, which the NIC cuts: it counts more packets than it was given.
    figures.at_least("packets out, as the NIC counts them", counted(&counters, "nic_tx_packets"), (32 << 20) / 1448)?;
    let mean = counted(&counters, "tx_bytes") / counted(&counters, "tx_packets").max(1);
    figures.at_least("mean bytes of a packet given to the NIC", mean, 3_000)?;
    figures.note("segments cut before the NIC", counted(&counters, "tx_segments"));
    figures.exactly("malformed packets in", counted(&counters, "rx_malformed"), 0)?;
    figures.exactly("Mb/s of the link", counted(&counters, "link_mbits"), 10_000)?;
    // A machine outside that does not run for a second makes the queue look as if it hung.
    figures.note("recoveries of the NIC", counted(&counters, "nic_recoveries"));
    figures.note("packets out that were dropped", counted(&counters, "tx_dropped"));
    figures.note("packets that found no room in the NIC", counted(&counters, "nic_rx_missed"));
    figures.note("packets refused by the NIC", counted(&counters, "tx_refused"));
    nobody_complains(context, &nic, "sidecore")?;
    nobody_complains(context, &peer.nic, "ixgbe")?;
    session.shut_down().map(drop).context("after everything had passed")
}

fn none(context: &mut Context<'_>) -> Result<()> {
    const PINGS: u64 = 20;
    for (device, says) in
        [("first", "no NIC for which there is a driver"), ("03:1f.7", "there is no device at 03:1f.7")]
    {
        let guests = [Guest::new(1).peer(2).then(format!("ping:{PINGS}")).then("wait"), Guest::new(2).then("wait")];
        let mut session = context.boot(&behind(server("no-uplink", &guests), device))?;
        let ping = session.result("a", "ping", seconds(240))?;
        context.figures.at_least("pings answered", number(&ping, "received")?, PINGS - PINGS / 10)?;
        let said = session.unread().iter().filter(|event| match event {
            Event::Report(entry) => entry.kind == ReportKind::Warning && entry.text.contains(says),
            _ => false,
        });
        context.figures.exactly(&format!("warnings for {device:?}"), said.count(), 1)?;
        session.shut_down()?;
    }
    Ok(())
}

fn steering(context: &mut Context<'_>) -> Result<()> {
    let (pings, time) = if context.full { (200, 10) } else { (30, 1) };
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
        traffic(context, &mut session, &mut peer, pings, time)?;
        let counters = session.counters()?;
        let (all, steered) = (counted(&counters, "rx_packets"), counted(&counters, "rx_steered"));
        context.figures.note("packets in", all);
        // By addresses all but broadcasts and multicasts; by flows what the hash says of four connections and the pings.
        let least = if word == "addresses" { all * 9 / 10 } else { pings - pings / 10 };
        context.figures.at_least("of these by another queue than the first", steered, least)?;
        nobody_complains(context, &nic, "sidecore")?;
        session.shut_down()?;
    }
    Ok(())
}

/// The VLAN's number.
const VLAN: u16 = 7;
/// Bytes of payload of a large frame.
const JUMBO: u16 = 9000;

fn vlan(context: &mut Context<'_>) -> Result<()> {
    let pings = if context.full { 200 } else { 30 };
    let mut setup = server("uplink-vlan", &[guest(1).mtu(JUMBO), guest(2).mtu(JUMBO)]);
    setup.uplink = Uplink::X520;
    // Behind the one root port: the first bus after the root's.
    let setup = behind(setup, "01:00.0");
    let Joined { mut session, nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a", "b"], true)?;
    peer.ask(&format!("mtu:{JUMBO}"), seconds(60))?;
    peer.ask("carrier:on:60", seconds(120))?;
    // 20 bytes of IPv4 and 8 of ICMP fill a frame.
    let mut pinged = |session: &mut Session, what: &str, subnet: u8, bytes: u16| -> Result<()> {
        for guest in ["a", "b"] {
            let ping = ask(session, guest, &format!("ping:{pings}:10.0.{subnet}.{PEER}:{bytes}"))?;
            let answered = number(&ping, "received")?;
            context.figures.at_least(&format!("pings {what} of {guest} answered"), answered, pings - pings / 10)?;
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
    let iperf = ask(&mut session, "a", &format!("iperf:1::10.0.7.{PEER}"))?;
    context.figures.at_least("bytes out of a, tagged", number(&iperf, "bytes")?, 1_000_000)?;

    let wire = nic.wire()?;
    let tag = |bytes: &[u8]| {
        (bytes.get(12..14) == Some(&[0x81, 0])).then(|| u16::from_be_bytes([bytes[14], bytes[15]]) & 0xfff)
    };
    let from = |mac: [u8; 6]| wire.iter().filter(move |frame| frame.bytes.get(6..12) == Some(&mac));
    let least = 2 * (pings - pings / 10);
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

fn flood(context: &mut Context<'_>) -> Result<()> {
    let (time, pings) = if context.full { (60, 500) } else { (15, 100) };
    let setup = connected("uplink-flood", &[guest(1), guest(2)]);
    let Joined { mut session, nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a", "b"], false)?;
    ping(context, &mut session, "a", 20)?;
    ask(&mut session, "a", "iperf-server")?;
    let before = session.counters()?;
    peer.ask(&format!("flood:{time}:10.0.0.1"), seconds(60))?;
    let came = |counters: &Counters| counted(counters, "rx_packets") - counted(&before, "rx_packets");
    while came(&session.counters()?) < 5000 {
        std::thread::sleep(seconds(1));
    }
    let begun = came(&session.counters()?);
    // To and from the one that is flooded, and the other one, which shares its engine and the wire with it.
    tell(&mut session, "b", &format!("ping:{pings}"))?;
    tell(&mut session, "a", &format!("ping:{pings}"))?;
    let other = session.result("b", "ping", seconds(300))?;
    let flooded = session.result("a", "ping", seconds(300))?;
    let during = came(&session.counters()?) - begun;
    context.figures.at_least("datagrams that came meanwhile", during, 2000)?;
    context.figures.at_least("pings of the other guest answered", number(&other, "received")?, pings - pings / 4)?;
    context.figures.at_least("pings of the flooded guest answered", number(&flooded, "received")?, pings / 10)?;
    let sent = peer.number("flooded", "packets", seconds(300))?;
    context.figures.note("datagrams of the flood", sent);
    for guest in ["a", "b"] {
        ping(context, &mut session, guest, 20)?;
    }
    context.figures.note("packets that found no room in the NIC", counted(&session.counters()?, "nic_rx_missed"));
    nobody_complains(context, &nic, "sidecore")?;
    session.shut_down().map(drop)
}
