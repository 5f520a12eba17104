//! An 82599 as the way out, and what goes wrong there: the link, the machine outside, a guest, sidecore itself.

use anyhow::{Context as _, Result, bail};
use control::{Command, Event, GuestState, PhysicalRange};

use super::network::number;
use super::uplink::{
    OUTSIDE, ask, boot, connected, counted, guest, nobody_complains, ping, same_file, serve, tell, until,
};
use crate::linux::Setup as Peer;
use crate::machine::Joined;
use crate::nic::Nic;
use crate::scenario::{Context, QEMU, Scenario, seconds};
use crate::session::Session;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    let scenario = |name, about, run| Scenario { name, about, platforms: QEMU, slow_on_bochs: false, run };
    vec![
        scenario(
            "uplink-faults",
            "the link flaps in mid transfer, the machine outside reboots, a guest is killed while the NIC reads its memory",
            faults,
        ),
        scenario(
            "uplink-device",
            "the NIC's transmit queue hangs, then it leaves the bus while a guest sends, and comes back",
            device,
        ),
        scenario(
            "uplink-rebind",
            "a guest's driver is taken from its device in mid transfer, also while the NIC holds its frames, and comes back",
            rebind,
        ),
        scenario("uplink-panic", "a panic with traffic on the wire: the device masters the bus no more", panic),
    ]
}

/// Pulls the cable at both ends, or puts it in.
fn cable(joined: &mut Joined, present: bool) -> Result<()> {
    joined.nic.cable(present)?;
    joined.peer.nic.cable(present)
}

/// Waits until so many more packets have come from outside.
fn more_packets(session: &mut Session, count: u64) -> Result<()> {
    let begin = counted(&session.counters()?, "rx_packets");
    for _ in 0..300 {
        if counted(&session.counters()?, "rx_packets") >= begin + count {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    bail!("no {count} packets came within a minute")
}

fn faults(context: &mut Context<'_>) -> Result<()> {
    let setup = connected("uplink-faults", &[guest(1), guest(2)]);
    let outside = Peer { reboots: true, ..OUTSIDE };
    let mut joined = boot(context, &setup, &outside, &["a", "b"], false)?;
    for guest in ["a", "b"] {
        ping(context, &mut joined.session, guest, 20)?;
    }
    flaps(context, &mut joined)?;
    reboot(context, &mut joined)?;
    kill(context, &mut joined)?;
    nobody_complains(context, &joined.nic, "sidecore")?;
    joined.session.shut_down().map(drop)
}

/// The link comes and goes while a guest fetches a file. The other guest looks at its own.
fn flaps(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let (flaps, file) = if context.full { (10, 256) } else { (2, 64) };
    let before = counted(&joined.session.counters()?, "link_changes");
    let sent = serve(&mut joined.peer, file)?;
    tell(&mut joined.session, "b", "hash")?;
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
    same_file(context, &format!("a file of {file} MiB over a link that flaps"), &sent, &received)?;
    let changes = counted(&joined.session.counters()?, "link_changes") - before;
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

/// Where a guest's memory lies.
fn regions(session: &mut Session, name: &str) -> Result<Vec<PhysicalRange>> {
    let Event::Reply { guests: Some(guests), .. } = session.ask(Command::List, seconds(20))? else {
        bail!("no list of guests in the reply");
    };
    Ok(guests.into_iter().find(|guest| guest.name == name).context("no such guest")?.regions)
}

/// Has the device count how often it reaches a guest's memory.
fn watch(context: &mut Context<'_>, session: &mut Session, nic: &mut Nic, guest: &str) -> Result<()> {
    let regions = regions(session, guest)?;
    context.figures.at_least("bytes of its memory", regions.iter().map(|r| r.bytes).sum::<u64>(), 192_u64 << 20)?;
    regions.iter().try_for_each(|region| nic.watch(region.start, region.bytes))
}

/// Waits until the device has reached what it watches so many times more.
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

/// A guest ends while the device reads frames out of its memory: afterwards it never does. Then it starts again.
fn kill(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    const READS: u64 = 1000;
    let Joined { session, nic, peer } = joined;
    watch(context, session, nic, "a")?;
    for life in 1..=if context.full { 5_u64 } else { 2 } {
        peer.ask("iperf-server", seconds(60))?;
        tell(session, "a", "iperf:600")?;
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

/// The device fails, in a way that a reset ends and in one that it does not.
fn device(context: &mut Context<'_>) -> Result<()> {
    let setup = connected("uplink-device", &[guest(1), guest(2)]);
    let Joined { mut session, mut nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a", "b"], false)?;
    for guest in ["a", "b"] {
        ping(context, &mut session, guest, 20)?;
    }
    nic.fail("transmit-stalled")?;
    tell(&mut session, "a", "ping:20")?;
    until(&mut session, "nic_recoveries", 1)?;
    nic.fail("nothing")?;
    let answered = session.result("a", "ping", seconds(300))?;
    context.figures.at_least("pings after a hung queue", number(&answered, "received")?, 18)?;

    peer.ask("iperf-server", seconds(60))?;
    tell(&mut session, "b", "iperf:600")?;
    let sent = counted(&session.counters()?, "nic_tx_packets");
    until(&mut session, "nic_tx_packets", sent + 2000)?;
    nic.bus_master(true, seconds(20))?;
    nic.fail("gone")?;
    nic.bus_master(false, seconds(60)).context("the device has left the bus")?;
    // Its end waits for every frame that the device has.
    session.ask(Command::Kill("b".into()), seconds(20))?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    ask(&mut session, "a", "carrier:off:60")?;
    context.figures.exactly("Mb/s of the link", counted(&session.counters()?, "link_mbits"), 0)?;
    nic.fail("nothing")?;
    nic.bus_master(true, seconds(120)).context("the device is back")?;
    ask(&mut session, "a", "carrier:on:60")?;
    session.ask(Command::Start("b".into()), seconds(20))?;
    session.result("b", "obey", seconds(240))?;
    for guest in ["a", "b"] {
        ping(context, &mut session, guest, 20)?;
    }
    session.shut_down().map(drop)
}

/// A guest's driver resets its device while a file leaves the guest. Nothing of its memory is read while it has no driver, all its
/// requests are back, and it goes on where it was. In the second part the NIC holds frames of it when that happens.
fn rebind(context: &mut Context<'_>) -> Result<()> {
    const READS: u64 = 100;
    const MEBIBYTES: u64 = 64;
    let setup = connected("uplink-rebind", &[guest(1).memory_mib(256), guest(2)]);
    let Joined { mut session, mut nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a", "b"], false)?;
    for guest in ["a", "b"] {
        ping(context, &mut session, guest, 20)?;
    }
    watch(context, &mut session, &mut nic, "a")?;
    tell(&mut session, "a", &format!("serve:{MEBIBYTES}"))?;
    let sent = session.result("a", "serve", seconds(120))?;
    let times = if context.full { 10 } else { 3 };
    peer.tell("hash:10.0.0.1")?;
    for time in 1..=times {
        more_touches(&mut nic, READS).context("a guest that sends")?;
        without_driver(context, &mut session, &mut nic, &format!("time {time}"))?;
    }
    let received = peer.answer("hash", seconds(600))?;
    same_file(context, &format!("a file of {MEBIBYTES} MiB whose sender resets its device"), &sent, &received)?;

    peer.ask("iperf-server", seconds(60))?;
    ask(&mut session, "a", "flood:600:10.0.0.9")?;
    more_touches(&mut nic, READS).context("a guest that sends datagrams")?;
    let recoveries = counted(&session.counters()?, "nic_recoveries");
    nic.fail("transmit-stalled")?;
    until(&mut session, "tx_held", 10).context("frames in a queue that hangs")?;
    tell(&mut session, "a", "unbind")?;
    // The driver waits for its frames, and these for the NIC's reset.
    until(&mut session, "nic_recoveries", recoveries + 1)?;
    session.result("a", "unbind", seconds(120))?;
    nic.fail("nothing")?;
    let counters = session.counters()?;
    context.figures.at_least("frames that came back by the NIC's reset", counted(&counters, "tx_dropped"), 10)?;
    quiet(context, &mut session, &mut nic, "the queue that hung")?;
    ask(&mut session, "a", "bind")?;
    for guest in ["a", "b"] {
        ping(context, &mut session, guest, 20)?;
    }
    let counters = session.counters()?;
    let ports = || counters.guests.iter().flat_map(|guest| &guest.ports);
    let late = ports().map(|port| port.stale_tokens).sum::<u64>();
    context.figures.at_least("requests that came back after a reset had begun", late, 10)?;
    context.figures.at_least("resets of a device", ports().map(|port| port.resets).sum::<u64>(), times + 1)?;
    context.figures.exactly("broken rules of rings", ports().map(|port| port.ring_errors).sum::<u64>(), 0)?;
    nobody_complains(context, &nic, "sidecore")?;
    session.shut_down().map(drop)
}

/// Takes its device from guest a's driver, and gives it back.
fn without_driver(context: &mut Context<'_>, session: &mut Session, nic: &mut Nic, when: &str) -> Result<()> {
    ask(session, "a", "unbind")?;
    quiet(context, session, nic, when)?;
    ask(session, "a", "bind").map(drop)
}

/// Guest a has no driver: whatever comes and goes for others, its memory is left alone, and nothing of it is with the NIC.
fn quiet(context: &mut Context<'_>, session: &mut Session, nic: &mut Nic, when: &str) -> Result<()> {
    let before = nic.touched()?;
    ping(context, session, "b", 50)?;
    let late = nic.touched()? - before;
    context.figures.exactly(&format!("accesses to its memory without a driver, {when}"), late, 0)?;
    let held = counted(&session.counters()?, "tx_held");
    context.figures.exactly(&format!("frames that the NIC holds, {when}"), held, 0)
}

/// A panic while a guest sends and the machine outside does: the right to master the bus goes, and nothing reaches memory
/// although frames still come.
fn panic(context: &mut Context<'_>) -> Result<()> {
    const SHOUTS: u64 = 200;
    let mut setup = connected("uplink-panic", &[guest(1)]);
    setup.options = "selftest=panic-at-shutdown";
    let Joined { mut session, mut nic, mut peer } = boot(context, &setup, &OUTSIDE, &["a"], true)?;
    nic.bus_master(true, seconds(20))?;
    nic.watch(0, u64::MAX)?;
    ping(context, &mut session, "a", 20)?;
    context.figures.at_least("accesses to memory before", nic.touched()?, 40)?;
    peer.ask("iperf-server", seconds(60))?;
    tell(&mut session, "a", "iperf:600")?;
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
