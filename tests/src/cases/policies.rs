//! The rules for the frames of a port, seen from inside guests and by the counters.

use anyhow::{Result, bail};
use control::{Counters, Event};
use serde_json::Value;

use crate::boot::{Boot, alone};
use crate::counts::{net, stage};
use crate::guests::{Guest, server, with_entries};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "VLANs, spoofed and claimed addresses, a denied port, counters and a mirror, each seen from inside guests and by COM2";
    vec![alone(Scenario::new("policies", about, QEMU).taking_turns().checked_on(QEMU), policies)]
}

const STAGES: &str = "
[[stage]]
name = \"pings\"
action = \"mirror\"
to = \"d\"
protocol = \"icmp\"
icmp_type = 8

[[stage]]
name = \"denied\"
action = \"deny\"
protocol = \"tcp\"
destination_port = 8001

[[stage]]
name = \"answers\"
action = \"count\"
protocol = \"icmp\"
icmp_type = 0

";

/// Four guests. a is untagged in VLAN 7. b tags its frames itself, in VLANs 7 and 9. c is untagged in 9. The IP addresses of a
/// and b are checked. c has no anti-spoofing. d gets a copy of a's pings.
fn guests() -> [Guest; 4] {
    let guest = |n| Guest::new(n).kernel_option("ipv6.disable=1");
    let rules = "vlan = 7\naddresses = [\"10.0.0.1\"]\ntx = [\"pings\", \"denied\"]\nrx = [\"answers\"]";
    [
        guest(1).net(rules).then("obey"),
        guest(2)
            .net("vlans = [7, 9]\naddresses = [\"10.0.0.2\"]")
            .then("vlan:7:10.0.0.2/24")
            .then("vlan:9:10.0.0.2/32:10.0.0.3")
            .then("obey"),
        guest(3).net("vlan = 9\nanti_spoofing = false").then("obey"),
        guest(4).net("vlan = 4000").then("obey"),
    ]
}

fn ask(session: &mut Session, guest: &str, action: &str) -> Result<Value> {
    session.act(guest, action, seconds(120))
}

fn ask_number(session: &mut Session, guest: &str, action: &str, name: &str) -> Result<u64> {
    number(&ask(session, guest, action)?, name)
}

fn dropped(counters: &Counters, guest: &str, cause: &str) -> Result<u64> {
    Ok(net(counters, guest)?.dropped(cause))
}

fn policies(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut session = context.boot(&with_entries(server("policies", &guests()), STAGES))?;
    session.all_obey(["a", "b", "c", "d"])?;
    vlans(context, &mut session)?;
    identities(context, &mut session)?;
    claims(context, &mut session)?;
    connections(context, &mut session)?;
    session.shut_down()?;
    Ok(())
}

/// Guests in one VLAN reach each other, whoever sets the tag. Others do not. d sees each ping of a.
fn vlans(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    const PINGS: u64 = 100;
    let figures = &mut context.figures;
    for guest in ["a", "c"] {
        let answered = ask_number(session, guest, "ping:1:10.0.0.2", "received")?;
        figures.exactly(&format!("{guest} finds b"), answered, 1)?;
    }
    let before = session.counters()?;
    let answered = ask_number(session, "a", &format!("pings:{PINGS}:10.0.0.2:20"), "received")?;
    figures.exactly("pings answered within VLAN 7, where b sets the tag itself", answered, PINGS)?;
    let answered = ask_number(session, "c", "pings:10:10.0.0.2:20", "received")?;
    figures.exactly("pings answered within VLAN 9", answered, 10)?;
    for (from, to) in [("a", "10.0.0.3"), ("c", "10.0.0.1")] {
        let answered = ask_number(session, from, &format!("pings:5:{to}:1"), "received")?;
        figures.exactly(&format!("pings answered from {from} into the other VLAN"), answered, 0)?;
    }
    let after = session.counters()?;
    let more = |what: &dyn Fn(&Counters) -> Result<u64>| Ok::<_, anyhow::Error>(what(&after)? - what(&before)?);
    let pings = more(&|c| Ok(stage(c, "a", "pings")?.frames))?;
    figures.exactly("pings of a that the stage counted", pings, PINGS)?;
    figures.exactly("answers that the stage counted", more(&|c| Ok(stage(c, "a", "answers")?.frames))?, PINGS)?;
    figures.exactly("frames given to d", more(&|c| Ok(net(c, "d")?.rx_packets))?, pings)?;
    Ok(())
}

/// With a false address a gets no answer. With its own address it gets answers again.
fn identities(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let figures = &mut context.figures;
    for (what, other, cause) in [
        ("IP", "identity:10.0.0.66/24", "tx_spoofed_address"),
        ("MAC", "identity:10.0.0.1/24:52:54:00:00:00:66", "tx_spoofed_mac"),
    ] {
        let before = dropped(&session.counters()?, "a", cause)?;
        ask(session, "a", other)?;
        let answered = ask_number(session, "a", "pings:10:10.0.0.2:1", "received")?;
        figures.exactly(&format!("pings answered to another {what} address"), answered, 0)?;
        let refused = dropped(&session.counters()?, "a", cause)? - before;
        figures.at_least(&format!("frames from another {what} address refused"), refused, 1)?;
        ask(session, "a", "identity:10.0.0.1/24:52:54:00:00:00:01")?;
        let answered = ask_number(session, "a", "ping:10:10.0.0.2", "received")?;
        figures.exactly(&format!("pings answered to its own {what} address again"), answered, 10)?;
    }
    Ok(())
}

/// c has no anti-spoofing. It may send from an address that nobody has, and may not claim the addresses of b. The report
/// names its port.
fn claims(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let figures = &mut context.figures;
    let named = session.unread().iter().filter(|event| match event {
        Event::Report(entry) => entry.text.contains("guest c: network device 0 (52:54:00:00:00:03) has anti_spoofing"),
        _ => false,
    });
    figures.exactly("sentences of the report about c's port", named.count() as u64, 1)?;
    ask(session, "c", "identity:10.0.0.3/24:52:54:00:00:00:77")?;
    let before = session.counters()?;
    // The device does not know this address as c's, so the answers do not reach the driver.
    ask(session, "c", "pings:10:10.0.0.2:1")?;
    let after = session.counters()?;
    let refused = dropped(&after, "c", "tx_spoofed_mac")? - dropped(&before, "c", "tx_spoofed_mac")?;
    figures.exactly("frames of c refused from a MAC address that nobody has", refused, 0)?;
    let arrived = net(&after, "b")?.rx_packets - net(&before, "b")?.rx_packets;
    figures.at_least("frames of these that b got", arrived, 1)?;
    for (what, other, cause) in [
        ("IP", "identity:10.0.0.2/24:52:54:00:00:00:03", "tx_spoofed_address"),
        ("MAC", "identity:10.0.0.3/24:52:54:00:00:00:02", "tx_spoofed_mac"),
    ] {
        let before = dropped(&session.counters()?, "c", cause)?;
        ask(session, "c", other)?;
        // Its ARP request names the claimed address as the sender's.
        let answered = ask_number(session, "c", "pings:10:10.0.0.4:1", "received")?;
        figures.exactly(&format!("pings of c answered to b's {what} address"), answered, 0)?;
        let refused = dropped(&session.counters()?, "c", cause)? - before;
        figures.at_least(&format!("frames of c that claim b's {what} address refused"), refused, 1)?;
    }
    ask(session, "c", "identity:10.0.0.3/24:52:54:00:00:00:03")?;
    let answered = ask_number(session, "c", "ping:10:10.0.0.2", "received")?;
    figures.exactly("pings of c answered to its own addresses again", answered, 10)?;
    Ok(())
}

/// A TCP port that a stage denies is not reached; another port is. The counters have the number of attempts.
fn connections(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let figures = &mut context.figures;
    for port in [8000, 8001] {
        ask(session, "b", &format!("web:{port}"))?;
    }
    let denied = ask(session, "a", "get:10.0.0.2:8001")?;
    figures.exactly("connections to the denied port", number(&denied, "got")?, 0)?;
    let counters = session.counters()?;
    let count = stage(&counters, "a", "denied")?;
    figures.at_least("SYNs to the denied port", count.dropped, 1)?;
    figures.exactly("SYNs that a sent there", number(&denied, "syns")?, count.dropped)?;
    figures.exactly("frames that the stage counted", count.frames, count.dropped)?;
    figures.exactly("frames that the port counted as denied", dropped(&counters, "a", "tx_denied")?, count.dropped)?;
    let allowed = ask_number(session, "a", "get:10.0.0.2:8000", "got")?;
    figures.exactly("connections to another port", allowed, 1)?;
    // d's interface may be late. It gets a's pings and nothing else.
    for _ in 0..20 {
        let seen = ask_number(session, "d", "seen", "frames")?;
        let counters = session.counters()?;
        let given = net(&counters, "d")?.rx_packets;
        if seen == given {
            let missed = dropped(&counters, "d", "rx_not_running")? + dropped(&counters, "d", "rx_no_buffer")?;
            let mirrored = stage(&counters, "a", "pings")?.frames;
            figures.exactly("frames that d saw, and those it was not there for", seen + missed, mirrored)?;
            return Ok(());
        }
    }
    bail!("d does not see what it is given")
}
