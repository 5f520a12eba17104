//! A hostile machine at the other end of the wire. `kernel/net/src/tests/wire.rs` sends more kinds of frames to the switch itself.

use anyhow::Result;

use super::outside::ask;
use crate::counts::{net, uplinks};
use crate::launch::Joined;
use crate::scenario::{Context, seconds};
use crate::session::number;

/// Rounds of all kinds of frames.
const ROUNDS: u64 = 20;
/// Pings of each guest meanwhile.
const PINGS: u64 = 100;
/// Frames for a guest besides the answers to its pings: ARP.
const OTHERS: u64 = 20;

/// The machine outside sends malformed frames to guest a, while both guests ping it.
pub fn wire(context: &mut Context<'_>, joined: &mut Joined) -> Result<()> {
    let Joined { session, peer, .. } = joined;
    let before = session.counters()?;
    for guest in ["a", "b"] {
        session.tell(guest, &format!("ping:{PINGS}"))?;
    }
    let sent = peer.ask(&format!("malformed:{ROUNDS}:52-54-00-00-00-01:52-54-00-00-00-02"), seconds(120))?;
    for guest in ["a", "b"] {
        let ping = session.result(guest, "ping", seconds(120))?;
        context.figures.exactly(&format!("pings of {guest} answered meanwhile"), number(&ping, "received")?, PINGS)?;
    }
    // All that the machine outside has sent is there when its answer is.
    let ping = ask(session, "a", "ping:1")?;
    let after = session.counters()?;
    let figures = &mut context.figures;
    figures.exactly("and behind them", number(&ping, "received")?, 1)?;
    let more = |kind: &str| uplinks(&after, kind) - uplinks(&before, kind);
    let came = |guest: &str| Ok::<_, anyhow::Error>(net(&after, guest)?.rx_packets - net(&before, guest)?.rx_packets);
    let [broken, stolen, multicast] = ["broken", "stolen", "multicast"].map(|kind| number(&sent, kind));
    let nobodys = number(&sent, "strange")? + number(&sent, "reserved")?;
    figures.at_least("malformed frames for a", broken?, 1_000)?;
    figures.exactly("frames with b's address as their source, refused", more("rx_own_source"), stolen?)?;
    figures.exactly("frames with a group as their source, refused", more("rx_malformed"), multicast?)?;
    figures.at_least("frames for nobody", nobodys, 500)?;
    figures.at_most("frames for nobody that the NIC let in", more("rx_not_ours"), nobodys)?;
    figures.at_most("frames that reached a", came("a")?, number(&sent, "broken")? + PINGS + 1 + OTHERS)?;
    figures.at_most("frames that reached b", came("b")?, PINGS + OTHERS)?;
    let drops = net(&after, "b")?.all_dropped() - net(&before, "b")?.all_dropped();
    figures.exactly("drops at b's port", drops, 0)?;
    figures.exactly("recoveries of the NIC", more("nic_recoveries"), 0)
}
