//! QEMU's 82576 as uplink, with Debian at the other end of its wire, and beside it a virtio network device as second uplink.
//! QEMU judges the driver: it says which accesses its model does not allow.

use anyhow::{Context as _, Result, ensure};
use control::Counters;
use serde_json::Value;

use super::outside::{OUTSIDE, PEER, ask, nobody_complains, ping, serve};
use super::uplink::tcp;
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server, with_entries};
use crate::linux::{Linux, Setup as Peer};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{IGB_EVENTS, IGB_SLOT, SECOND_HOST_ADDRESS, Setup, Uplink};

const PINGS: u64 = 200;
/// Frames to nobody, of each kind.
const ASTRAY: u64 = 50;
/// Size of the file from outside, and of the one back, in MiB.
const FILE: u32 = 64;
const BACK: u32 = 32;
/// The VLAN of tagged frames.
const VLAN: u16 = 7;
/// The rules of the 82576's uplink and of the devices behind it: tagged in that VLAN, untagged in another.
const RULES: &str = "vlans = [7]\nnative = 20";
/// The uplink's name.
const WIRE: &str = "wire";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let igb = "QEMU's 82576 and a virtio device as uplinks, Debian at the 82576's other end: pings, TCP both ways with \
               offloads, files both ways, tagged frames; the counters are those of the other end, and QEMU has no complaint";
    vec![alone(Scenario::new("uplink-igb", igb, QEMU).taking_turns(), uplink_igb)]
}

/// A server with both uplinks. Guest a has a device behind each, guest b one behind the 82576.
fn setup() -> Setup {
    // IPv6 is off, so that Linux sends no multicasts, which the other end would not count.
    let guest = |number| Guest::new(number).full().peer(PEER.into()).kernel_option("ipv6.disable=1");
    let behind = format!("port = \"wire\"\n{RULES}");
    let a = guest(1)
        .net(&format!("{behind}\n\n[[guest.net]]\nmac = \"52:54:00:00:09:01\"\nport = \"lan\""))
        .then("interface:eth1:10.0.9.1/24")
        .then("obey");
    let b = guest(2).net(&behind).memory_mib(256).then("obey");
    let mut setup = server("uplink-igb", &[a, b]);
    setup.uplink = Uplink::Igb;
    let ports = format!(
        "[[port]]\nname = \"wire\"\ndevice = \"00:{IGB_SLOT}.0\"\n{RULES}\n\n[[port]]\nname = \"lan\"\ndevice = \"00:11.0\"\n\n"
    );
    with_entries(setup, &ports)
}

fn uplink_igb(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let outside = Peer { memory_mib: OUTSIDE.memory_mib + FILE, ..OUTSIDE };
    let (mut session, mut peer) = context.boot_with_peer(&setup(), &outside)?;
    session.all_obey(["a", "b"])?;
    for guest in ["a", "b"] {
        let ping = ask(&mut session, guest, "ping:20")?;
        ensure!(
            number(&ping, "received")? == 20,
            "the machine outside does not answer guest {guest} each time: {ping}"
        );
    }

    let before = readings(&mut session, &mut peer)?;
    for guest in ["a", "b"] {
        ping(context, &mut session, guest, PINGS)?;
    }
    let after = readings(&mut session, &mut peer)?;
    same_at_both_ends(context, &before, &after)?;
    astray(context, &mut session, &mut peer)?;

    peer.ask("iperf-server", seconds(60))?;
    for guest in ["a", "b"] {
        tcp(context, &mut session, guest, if context.full { 128 } else { 16 })?;
    }
    let sent = serve(&mut peer, FILE.into())?;
    session.tell("a", &format!("serve:{BACK}"))?;
    session.tell("b", "hash")?;
    let received = session.result("b", "hash", seconds(1200))?;
    context.figures.same_file(&format!("intact: a file of {FILE} MiB into b"), &sent, &received)?;
    let sent = session.result("a", "serve", seconds(120))?;
    let received = peer.ask("hash:10.0.0.1", seconds(300))?;
    context.figures.same_file(&format!("intact: a file of {BACK} MiB out of a"), &sent, &received)?;
    let answered = ask(&mut session, "a", &format!("ping:{PINGS}:{SECOND_HOST_ADDRESS}"))?;
    context.figures.exactly("pings from a by the virtio device answered", number(&answered, "received")?, PINGS)?;

    // The device removes the tag of a frame that comes, and the engine puts it back.
    peer.ask(&format!("vlan:{VLAN}:10.0.7.{PEER}/24"), seconds(60))?;
    ask(&mut session, "b", &format!("vlan:{VLAN}:10.0.7.2/24"))?;
    let answered = ask(&mut session, "b", &format!("ping:{PINGS}:10.0.7.{PEER}:56"))?;
    context.figures.exactly("tagged pings from b answered", number(&answered, "received")?, PINGS)?;

    counted(context, &session.counters()?)?;
    nobody_complains(context, &peer.nic, "ixgbe")?;
    session.shut_down()?;
    nothing_against_us(context, &session)
}

/// Counters of both ends, when no frame is under way.
fn readings(session: &mut Session, peer: &mut Linux) -> Result<(Counters, Value)> {
    for _ in 0..60 {
        let before = (session.counters()?, peer.ask("stats", seconds(20))?);
        // The driver reads the device's counters once a second.
        std::thread::sleep(std::time::Duration::from_millis(2500));
        let after = (session.counters()?, peer.ask("stats", seconds(20))?);
        let quiet = |name| count(&before.0, name).ok() == count(&after.0, name).ok();
        if before.1 == after.1 && quiet("nic_rx_packets") && quiet("nic_tx_packets") {
            return Ok(after);
        }
    }
    anyhow::bail!("frames pass all the time")
}

/// A counter of the 82576's uplink.
fn count(counters: &Counters, name: &str) -> Result<u64> {
    Ok(counters.uplink(WIRE).context("no uplink of that name")?.count(name))
}

/// Compares what each end has counted between two readings.
fn same_at_both_ends(context: &mut Context<'_>, before: &(Counters, Value), after: &(Counters, Value)) -> Result<()> {
    let theirs = |name: &str| {
        let of = |stats: &Value| stats[name].as_u64().unwrap_or_default();
        of(&after.1) - of(&before.1)
    };
    let ours = |name| Ok::<_, anyhow::Error>(count(&after.0, name)? - count(&before.0, name)?);
    let figures = &mut context.figures;
    for (what, ours, theirs) in [
        ("frames out", ours("nic_tx_packets")?, theirs("rx_pkts_nic")),
        ("frames in", ours("nic_rx_packets")?, theirs("tx_pkts_nic")),
        ("bytes out, with FCS", ours("nic_tx_bytes")?, theirs("rx_bytes_nic")),
        ("bytes in, with FCS", ours("nic_rx_bytes")?, theirs("tx_bytes_nic")),
    ] {
        figures.at_least(&format!("{what}, as the other end counts"), theirs, 2 * PINGS)?;
        figures.exactly(&format!("{what}, as the 82576 counts"), ours, theirs)?;
    }
    Ok(())
}

/// Frames for nobody here do not come in: the device's tables leave them out.
fn astray(context: &mut Context<'_>, session: &mut Session, peer: &mut Linux) -> Result<()> {
    let (before, _) = readings(session, peer)?;
    let sent = peer.ask(&format!("astray:{ASTRAY}"), seconds(60))?;
    context.figures.exactly("frames sent to nobody", number(&sent, "sent")?, 2 * ASTRAY)?;
    ping(context, session, "a", 20)?;
    let (after, _) = readings(session, peer)?;
    let came = count(&after, "nic_rx_packets")? - count(&before, "nic_rx_packets")?;
    // The answers, and requests for addresses.
    context.figures.at_least("frames in meanwhile", came, 20)?;
    context.figures.at_most("frames in meanwhile, and no others", came, 20 + ASTRAY / 2)?;
    for kind in ["rx_not_ours", "nic_promiscuous", "nic_all_multicast"] {
        let more = count(&after, kind)? - if kind == "rx_not_ours" { count(&before, kind)? } else { 0 };
        context.figures.exactly(kind, more, 0)?;
    }
    Ok(())
}

/// What the uplinks have counted in the end.
fn counted(context: &mut Context<'_>, counters: &Counters) -> Result<()> {
    let figures = &mut context.figures;
    figures.at_least("packets in", count(counters, "rx_packets")?, (u64::from(FILE) << 20) / 1460)?;
    // The guests send unsegmented frames, and the NIC segments them.
    let mean = count(counters, "tx_bytes")? / count(counters, "tx_packets")?.max(1);
    figures.at_least("mean bytes of a packet given to the NIC", mean, 3_000)?;
    figures.note("segments cut before the NIC", count(counters, "tx_segments")?);
    figures.note("checksums computed before the NIC", count(counters, "tx_checksums")?);
    figures.note("frames that found no buffer", count(counters, "nic_rx_no_buffer")?);
    for (what, kind, expected) in [
        ("Mb/s of the link", "link_mbits", 1_000),
        ("malformed packets in", "rx_malformed", 0),
        ("frames whose descriptors made no sense", "nic_rx_malformed", 0),
        ("packets out that were dropped", "tx_dropped", 0),
        ("recoveries of the NIC", "nic_recoveries", 0),
    ] {
        figures.exactly(what, count(counters, kind)?, expected)?;
    }
    Ok(())
}

/// QEMU has no complaint about the driver. That it would say so is seen from the resets that it reports.
fn nothing_against_us(context: &mut Context<'_>, session: &Session) -> Result<()> {
    let text = String::from_utf8_lossy(&session.file("emulator")?).into_owned();
    let [complaints @ .., reset] = IGB_EVENTS;
    context.figures.at_least("resets of the device, by QEMU's trace", text.matches(reset).count() as u64, 1)?;
    let bad: Vec<&str> = text
        .lines()
        .filter(|line| complaints.iter().any(|event| line.contains(event)) || line.contains("igb:"))
        .collect();
    ensure!(bad.is_empty(), "QEMU has something against the driver: {bad:#?}");
    context.figures.exactly("complaints of QEMU about the driver", bad.len(), 0)
}
