//! An 82599 as uplink, and its faults: of the link, the machine outside, a guest, the device, sidecore itself.

use anyhow::{Context as _, Result, bail};
use control::{Command, GuestState};
use net::counters::UplinkDrop;

use super::outside::{OUTSIDE, ask, boot, connected, guest, nobody_complains, ping, serve, until};
use crate::counts::{net_of_all, uplinks};
use crate::launch::Joined;
use crate::nic::Nic;
use crate::scenario::{Context, seconds};
use crate::session::{Session, number};

/// Pulls the cable at both ends, or puts it in.
fn cable(joined: &mut Joined, present: bool) -> Result<()> {
    joined.nic.cable(present)?;
    joined.peer.nic.cable(present)
}

/// Waits until `count` more packets have come from outside.
fn more_packets(session: &mut Session, count: u64) -> Result<()> {
    let begin = uplinks(&session.counters()?, "rx_packets");
    for _ in 0..300 {
        if uplinks(&session.counters()?, "rx_packets") >= begin + count {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    bail!("no {count} packets came within a minute")
}

/// The link flaps, the machine outside reboots, a guest is killed.
pub fn faults(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    for guest in ["a", "b"] {
        ping(context, &mut joined.session, guest, 20)?;
    }
    flaps(context, joined)?;
    reboot(context, joined)?;
    kill(context, joined)?;
    nobody_complains(context, &joined.nic, "sidecore")
}

/// The link goes down and up while a guest fetches a file. The other guest watches its own link.
fn flaps(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let (flaps, file) = if context.full { (10, 256) } else { (2, 64) };
    let before = uplinks(&joined.session.counters()?, "link_changes");
    let sent = serve(&mut joined.peer, file)?;
    joined.session.tell("b", "hash")?;
    let mut seen = 0;
    for _ in 0..flaps {
        more_packets(&mut joined.session, 2000)?;
        cable(joined, false)?;
        ask(&mut joined.session, "a", "carrier:off:60")?;
        cable(joined, true)?;
        ask(&mut joined.session, "a", "carrier:on:60")?;
        joined.peer.ask("carrier:on:60", seconds(120))?;
        seen += 1;
    }
    context.figures.exactly("flaps of the link that a guest has seen", seen, flaps)?;
    let received = joined.session.result("b", "hash", seconds(1200))?;
    context.figures.same_file(&format!("intact: a file of {file} MiB over a link that flaps"), &sent, &received)?;
    let changes = uplinks(&joined.session.counters()?, "link_changes") - before;
    context.figures.at_least("changes of the link, as counted", changes, 2 * flaps)
}

/// The machine outside starts again, and the guests find it.
fn reboot(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    cable(joined, false)?;
    joined.peer.ask("reboot", seconds(60))?;
    joined.peer.answer("obey", seconds(240)).context("after its reboot")?;
    cable(joined, true)?;
    joined.peer.ask("carrier:on:60", seconds(120))?;
    for guest in ["a", "b"] {
        ping(context, &mut joined.session, guest, 20)?;
    }
    Ok(())
}

/// Starts the device's count of its accesses to a guest's memory.
fn watch(context: &mut Context<'_>, session: &mut Session, nic: &mut Nic, guest: &str) -> Result<()> {
    let regions = session.guest(guest)?.regions;
    context.figures.at_least("bytes of its memory", regions.iter().map(|r| r.bytes).sum::<u64>(), 192_u64 << 20)?;
    regions.iter().try_for_each(|region| nic.watch(region.start, region.bytes))
}

/// Waits until the device has made `count` more accesses to the watched memory.
fn more_touches(nic: &mut Nic, count: u64) -> Result<()> {
    let begin = nic.touched()?;
    for _ in 0..300 {
        if nic.touched()? >= begin + count {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    bail!("the device did not reach what it watches {count} times within a minute")
}

/// Kills a guest while the device reads frames from its memory. Afterwards the device must not access that memory. Then
/// the guest starts again.
fn kill(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    const READS: u64 = 1000;
    let Joined { session, nic, peer } = joined;
    watch(context, session, nic, "a")?;
    for life in 1..=if context.full { 5_u64 } else { 2 } {
        peer.ask("iperf-server", seconds(60))?;
        session.tell("a", "iperf:600")?;
        more_touches(nic, READS).context("a guest that sends")?;
        session.ask(Command::Kill("a".into()), seconds(20))?;
        session.state("a", GuestState::Stopped, seconds(60))?;
        let gone = nic.touched()?;
        ping(context, session, "b", 50)?;
        let late = nic.touched()? - gone;
        context.figures.exactly(&format!("accesses to its memory after the end of life {life}"), late, 0)?;
        session.ask(Command::Start("a".into()), seconds(20))?;
        session.result("a", "obey", seconds(240))?;
        ping(context, session, "a", 20)?;
    }
    Ok(())
}

/// The device fails in two ways: a reset ends the first one, but not the second.
pub fn device(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let Joined { session, nic, peer } = joined;
    for guest in ["a", "b"] {
        ping(context, session, guest, 20)?;
    }
    let before = session.counters()?;
    let recoveries = uplinks(&before, "nic_recoveries");
    nic.fail("transmit-stalled")?;
    session.tell("a", "ping:20")?;
    until(session, "nic_recoveries", recoveries + 1)?;
    nic.fail("nothing")?;
    let answered = session.result("a", "ping", seconds(300))?;
    let answered = number(&answered, "received")?;
    let unsent = uplinks(&session.counters()?, UplinkDrop::Unsent.name()) - uplinks(&before, UplinkDrop::Unsent.name());
    let figures = &mut context.figures;
    figures.at_least("pings after a hung queue", answered, 18)?;
    figures.at_least("of 20 pings, answered or counted as not sent", answered + unsent, 20)?;

    peer.ask("iperf-server", seconds(60))?;
    session.tell("b", "iperf:600")?;
    let sent = uplinks(&session.counters()?, "nic_tx_packets");
    until(session, "nic_tx_packets", sent + 2000)?;
    nic.bus_master(true, seconds(20))?;
    nic.fail("gone")?;
    nic.bus_master(false, seconds(60)).context("the device has left the bus")?;
    // The guest ends only after the device has given back all of its frames.
    session.ask(Command::Kill("b".into()), seconds(20))?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    ask(session, "a", "carrier:off:60")?;
    context.figures.exactly("Mb/s of the link", uplinks(&session.counters()?, "link_mbits"), 0)?;
    nic.fail("nothing")?;
    nic.bus_master(true, seconds(120)).context("the device is back")?;
    ask(session, "a", "carrier:on:60")?;
    session.ask(Command::Start("b".into()), seconds(20))?;
    session.result("b", "obey", seconds(240))?;
    for guest in ["a", "b"] {
        ping(context, session, guest, 20)?;
    }
    Ok(())
}

/// A guest's driver is unbound from its device while the guest sends a file. While the device has no driver, the NIC
/// reads nothing of the guest's memory, and all requests are back. Then the transfer goes on. In the second part the
/// NIC holds frames of the guest at that moment.
pub fn rebind(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    const READS: u64 = 100;
    const MEBIBYTES: u64 = 64;
    let Joined { session, nic, peer } = joined;
    let before = session.counters()?;
    for guest in ["a", "b"] {
        ping(context, session, guest, 20)?;
    }
    watch(context, session, nic, "a")?;
    session.tell("a", &format!("serve:{MEBIBYTES}"))?;
    let sent = session.result("a", "serve", seconds(120))?;
    let times = if context.full { 10 } else { 3 };
    peer.tell("hash:10.0.0.1")?;
    for time in 1..=times {
        more_touches(nic, READS).context("a guest that sends")?;
        without_driver(context, session, nic, &format!("time {time}"))?;
    }
    let received = peer.answer("hash", seconds(600))?;
    context.figures.same_file(
        &format!("intact: a file of {MEBIBYTES} MiB whose sender resets its device"),
        &sent,
        &received,
    )?;

    peer.ask("iperf-server", seconds(60))?;
    ask(session, "a", "flood:600:10.0.0.9")?;
    more_touches(nic, READS).context("a guest that sends datagrams")?;
    let recoveries = uplinks(&session.counters()?, "nic_recoveries");
    nic.fail("transmit-stalled")?;
    until(session, "tx_held", 10).context("frames in a queue that hangs")?;
    let held = session.counters()?;
    session.tell("a", "unbind")?;
    // The driver waits for its frames. They come back only by a reset of the NIC.
    until(session, "nic_recoveries", recoveries + 1)?;
    session.result("a", "unbind", seconds(120))?;
    nic.fail("nothing")?;
    let counters = session.counters()?;
    let dropped = uplinks(&counters, "tx_dropped") - uplinks(&held, "tx_dropped");
    context.figures.at_least("frames that came back by the NIC's reset", dropped, 10)?;
    quiet(context, session, nic, "the queue that hung")?;
    ask(session, "a", "bind")?;
    for guest in ["a", "b"] {
        ping(context, session, guest, 20)?;
    }
    let counters = session.counters()?;
    let (before, after) = (net_of_all(&before), net_of_all(&counters));
    let late = after.stale_tokens - before.stale_tokens;
    context.figures.at_least("requests that came back after a reset had begun", late, 10)?;
    context.figures.at_least("resets of a device", after.resets - before.resets, times + 1)?;
    context.figures.exactly("broken rules of rings", after.ring_errors, 0)?;
    nobody_complains(context, nic, "sidecore")
}

/// Unbinds guest a's driver from its device, and binds it again.
fn without_driver(context: &mut Context<'_>, session: &mut Session, nic: &mut Nic, when: &str) -> Result<()> {
    ask(session, "a", "unbind")?;
    quiet(context, session, nic, when)?;
    ask(session, "a", "bind").map(drop)
}

/// Checks that, while guest a has no driver, the NIC leaves a's memory alone and holds none of its frames, even under
/// traffic of others.
fn quiet(context: &mut Context<'_>, session: &mut Session, nic: &mut Nic, when: &str) -> Result<()> {
    let before = nic.touched()?;
    ping(context, session, "b", 50)?;
    let late = nic.touched()? - before;
    context.figures.exactly(&format!("accesses to its memory without a driver, {when}"), late, 0)?;
    let held = uplinks(&session.counters()?, "tx_held");
    context.figures.exactly(&format!("frames that the NIC holds, {when}"), held, 0)
}

/// A panic while a guest and the machine outside send. The device loses bus mastering, and no frame reaches memory
/// although frames still arrive.
pub fn panic(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    const SHOUTS: u64 = 200;
    let mut setup = connected("uplink-panic", &[guest(1)]);
    setup.options = "selftest=panic-at-shutdown";
    let Joined { mut session, mut nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a"], true)?;
    nic.bus_master(true, seconds(20))?;
    nic.watch(0, u64::MAX)?;
    ping(context, &mut session, "a", 20)?;
    context.figures.at_least("accesses to memory before", nic.touched()?, 40)?;
    peer.ask("iperf-server", seconds(60))?;
    session.tell("a", "iperf:600")?;
    more_touches(&mut nic, 1000)?;
    session.send(Command::Shutdown)?;
    session.panicked(seconds(60))?;
    nic.bus_master(false, seconds(60))?;
    let (after, frames) = (nic.touched()?, nic.wire()?.len());
    let shout = peer.ask(&format!("shout:{SHOUTS}:10.0.0.1"), seconds(120))?;
    context.figures.exactly("echo requests after the panic", shout["sent"].as_f64().unwrap_or_default(), SHOUTS)?;
    context.figures.exactly("echo replies after the panic", shout["received"].as_f64().unwrap_or(-1.0), 0)?;
    context.figures.at_least("frames that still came", nic.wire()?.len() - frames, SHOUTS - SHOUTS / 10)?;
    context.figures.exactly("accesses to memory after the panic", nic.touched()? - after, 0)
}
