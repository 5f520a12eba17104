//! Common parts of scenarios with sidecore and its guests at one end of a wire, and Debian with its own driver for the
//! 82599 at the other.

use anyhow::{Result, ensure};
use control::Counters;
use serde_json::Value;

use crate::counts::uplinks;
use crate::guests::{Guest, server, with_entries};
use crate::launch::Joined;
use crate::linux::{Linux, Setup as Peer};
use crate::nic::Nic;
use crate::scenario::{Context, seconds};
use crate::session::{Session, number};
use crate::setup::{Setup, Uplink};

/// The other machine's number, which is the last byte of its addresses.
pub const PEER: u8 = 9;

/// The machine with Debian at the other end.
pub const OUTSIDE: Peer =
    Peer { name: "outside", number: PEER, cpus: 1, memory_mib: 512, reboots: false, options: "", backplane: false };

/// A guest that obeys.
pub fn guest(number: usize) -> Guest {
    Guest::new(number).full().peer(PEER.into()).then("obey")
}

/// A server with an 82599 that these guests share.
pub fn connected(name: &str, guests: &[Guest]) -> Setup {
    let mut setup = server(name, guests);
    setup.uplink = Uplink::X520;
    behind(setup, "first")
}

/// Adds a `[[port]]` that names this device.
pub fn behind(setup: Setup, device: &str) -> Setup {
    with_entries(setup, &format!("[[port]]\ndevice = \"{device}\"\n\n"))
}

/// Sends an action to a guest and waits for the answer.
pub fn ask(session: &mut Session, guest: &str, action: &str) -> Result<Value> {
    session.act(guest, action, seconds(300))
}

/// Boots both machines, and waits until the guests and the machine outside obey.
pub fn boot(context: &mut Context<'_>, setup: &Setup, peer: &Peer, guests: &[&str], capture: bool) -> Result<Joined> {
    let mut joined = context.boot_joined(setup, peer, capture)?;
    joined.session.all_obey(guests.iter().copied())?;
    Ok(joined)
}

/// Waits until a counter of the uplink has reached a value.
pub fn until(session: &mut Session, kind: &str, least: u64) -> Result<()> {
    let reached = |counters: &Counters| uplinks(counters, kind) >= least;
    session.counters_when(&format!("{kind} is at least {least}"), reached).map(drop)
}

/// Checks that the device has no complaint about its driver.
pub fn nobody_complains(context: &mut Context<'_>, nic: &Nic, whose: &str) -> Result<()> {
    let complaints = nic.complaints()?;
    ensure!(complaints.is_empty(), "the device has something against {whose}: {complaints:#?}");
    context.figures.exactly(&format!("complaints of the device about {whose}"), complaints.len(), 0)
}

/// Pings the machine outside from a guest, and checks that all pings are answered.
pub fn ping(context: &mut Context<'_>, session: &mut Session, guest: &str, count: u64) -> Result<()> {
    let ping = ask(session, guest, &format!("ping:{count}"))?;
    context.figures.exactly(&format!("pings of {guest} answered"), number(&ping, "received")?, count)
}

/// Makes the machine outside serve a file.
pub fn serve(machine: &mut Linux, mebibytes: u64) -> Result<Value> {
    machine.ask(&format!("serve:{mebibytes}"), seconds(300))
}
