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
use crate::setup::{SECOND_HOST_ADDRESS, Setup, Uplink};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "VLANs, foreign tags, spoofed, static and claimed addresses (ARP, neighbour discovery; another port's, the gateway's), a denied port, \
                 counters and a mirror, each seen from inside guests and by COM2";
    vec![alone(Scenario::new("policies", about, QEMU).taking_turns().checked_on(QEMU), policies)]
}

/// The address of the uplink's NIC.
const NIC: &str = "52:54:00:12:34:57";
/// The MAC address of the gateway behind it. Its IP address is [`SECOND_HOST_ADDRESS`].
const GATEWAY: &str = "52:55:0a:00:09:fe";
/// A static address of a.
const STATIC_OF_A: &str = "52:54:00:00:01:01";

/// The stages. The last four count what b and c are given in VLAN 9.
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

[[stage]]
name = \"arp\"
action = \"count\"
vlan = 9
ether_type = 0x806
destination_mac = \"ff:ff:ff:ff:ff:ff\"

[[stage]]
name = \"echo\"
action = \"count\"
vlan = 9
protocol = \"icmp\"
icmp_type = 8

[[stage]]
name = \"solicitation\"
action = \"count\"
vlan = 9
protocol = \"icmpv6\"
icmp_type = 135

[[stage]]
name = \"advertisement\"
action = \"count\"
vlan = 9
protocol = \"icmpv6\"
icmp_type = 136

";

/// Four guests. a is untagged in VLAN 7. b tags its frames itself, in VLANs 7 and 9. c is untagged in 9. The IP addresses of a
/// and b are checked. c's first device has no anti-spoofing, its second one has the default rules. d is in no VLAN. It gets a
/// copy of a's pings.
fn guests() -> [Guest; 4] {
    let guest = |n| Guest::new(n).kernel_option("ipv6.disable=1");
    let seen = "rx = [\"arp\", \"echo\", \"solicitation\", \"advertisement\"]";
    let a = format!(
        "vlan = 7\naddresses = [\"10.0.0.1\"]\nstatic = [\"{STATIC_OF_A}\"]\ntx = [\"pings\", \"denied\"]\nrx = [\"answers\"]"
    );
    let open = format!("vlan = 9\nanti_spoofing = false\n{seen}");
    let usual = "[[guest.net]]\nmac = \"52:54:00:00:03:03\"\nstatic = [\"52:54:00:00:03:04\"]\nvlan = 9";
    [
        guest(1).net(&a).then("obey"),
        guest(2)
            .net(&format!("vlans = [7, 9]\naddresses = [\"10.0.0.2\", \"fd00::2\"]\n{seen}"))
            .then("vlan:7:10.0.0.2/24")
            .then("vlan:9:10.0.0.2/32:10.0.0.3")
            .then("obey"),
        // It has IPv6, and uses it when it is told to.
        Guest::new(3).kernel_option("ipv6.disable_ipv6=1").net(&format!("{open}\n\n{usual}")).then("obey"),
        guest(4).then("obey"),
    ]
}

fn setup() -> Setup {
    let port = format!(
        "[[port]]\ndevice = \"00:10.0\"\nvlan = 9\ngateway = [\"{SECOND_HOST_ADDRESS}\", \"fec0::2\", \"{GATEWAY}\"]\n"
    );
    let mut setup = with_entries(server("policies", &guests()), &(port + STAGES));
    setup.uplink = Uplink::TwoVirtio;
    setup
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
    let mut session = context.boot(&setup())?;
    session.all_obey(["a", "b", "c", "d"])?;
    vlans(context, &mut session)?;
    identities(context, &mut session)?;
    claims(context, &mut session)?;
    connections(context, &mut session)?;
    tags(context, &mut session)?;
    sources(context, &mut session)?;
    arp(context, &mut session)?;
    neighbours(context, &mut session)?;
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

/// Frames of a kind: the stage that counts those that are given to the receiver, and how many are sent.
type Frames = (&'static str, u64);

/// Frames of one run of `arping` in each of its three ways.
const ARP: u64 = 2;

/// Has a guest send frames by a line for its shell. They are refused for this cause, and for no other, or all given to the receiver.
fn send(
    context: &mut Context<'_>,
    session: &mut Session,
    [from, to]: [&str; 2],
    what: &str,
    line: &str,
    frames: &[Frames],
    refused: Option<&str>,
) -> Result<()> {
    let before = session.counters()?;
    session.in_shell(from, line, seconds(120))?;
    let after = session.counters()?;
    let sent = |counters: &Counters| {
        let drops = net(counters, from)?.drops;
        Ok::<_, anyhow::Error>(drops.iter().filter(|(cause, _)| cause.starts_with("tx_")).map(|(_, n)| n).sum::<u64>())
    };
    let all: u64 = frames.iter().map(|(_, count)| count).sum();
    let figures = &mut context.figures;
    let dropped_now = sent(&after)? - sent(&before)?;
    match refused {
        Some(cause) => {
            let why = dropped(&after, from, cause)? - dropped(&before, from, cause)?;
            figures.exactly(&format!("{what}: {cause}"), why, all)?;
            figures.exactly(&format!("{what}: refused"), dropped_now, all)?;
        }
        None => figures.exactly(&format!("{what}: refused"), dropped_now, 0)?,
    }
    for (kind, count) in frames {
        let given = stage(&after, to, kind)?.frames - stage(&before, to, kind)?.frames;
        let expected = if refused.is_some() { 0 } else { *count };
        figures.exactly(&format!("{what}: {kind} frames given to {to}"), given, expected)?;
    }
    Ok(())
}

/// Announces an address by ARP, as an answer.
fn announce(interface: &str, address: &str) -> String {
    format!("arping -q -A -c {ARP} -I {interface} {address}")
}

/// Tags that are not the port's are refused, at each kind of port; those of the port, and frames without one, pass.
fn tags(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let frames = [("arp", ARP)];
    for (guest, action) in [
        ("b", "vlan:8:10.0.0.2/32"),
        ("c", "vlan:7:10.0.7.3/24"),
        ("c", "vlan:9:10.0.8.3/24"),
        ("c", "identity:10.0.0.3/24"),
        // Its second device. The gateway answers there.
        ("c", "interface:eth1:10.0.9.13/24"),
        ("d", "vlan:9:10.0.0.4/24"),
    ] {
        ask(session, guest, action)?;
    }
    let answered = ask_number(session, "c", &format!("ping:10:{SECOND_HOST_ADDRESS}"), "received")?;
    context.figures.exactly("pings of c answered by the gateway", answered, 10)?;
    for guest in ["b", "c", "d"] {
        session.tell(guest, "shell")?;
        // An interface answers for its own addresses, and a guest may claim one that it has not.
        let line = "cd /proc/sys/net/ipv4; echo 1 >ip_nonlocal_bind; echo 1 >conf/all/arp_ignore";
        session.in_shell(guest, line, seconds(60))?;
    }
    for (interface, what, refused) in [
        ("eth0.8", "b in VLAN 8, which is not its own", Some("tx_vlan")),
        ("eth0", "b without a tag", Some("tx_vlan")),
        ("eth0.9", "b in its VLAN 9", None),
    ] {
        send(context, session, ["b", "c"], what, &announce(interface, "10.0.0.2"), &frames, refused)?;
    }
    for (interface, what, refused) in [
        ("eth0.7", "c with the tag of VLAN 7", Some("tx_vlan")),
        ("eth0.9", "c with the tag of VLAN 9, where it has none", Some("tx_vlan")),
        ("eth0", "c without a tag", None),
    ] {
        send(context, session, ["c", "b"], what, &announce(interface, "10.0.0.3"), &frames, refused)?;
    }
    // The port of d has no VLAN, and nobody is there but d.
    let service = "ip link add link eth0 name service type vlan protocol 802.1ad id 9; ip link set service up";
    session.in_shell("d", service, seconds(60))?;
    for (interface, what, cause) in [
        ("eth0.9", "d with the tag of VLAN 9", "tx_vlan"),
        ("service", "d with a service tag", "tx_vlan"),
        ("eth0", "d without a tag, which nobody takes", "tx_no_destination"),
    ] {
        send(context, session, ["d", "b"], what, &announce(interface, "10.0.0.4"), &frames, Some(cause))?;
    }
    Ok(())
}

/// a pings from its static MAC address. The answers reach its driver too if that takes all frames: the device knows its own address only.
fn pinged_from_static(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    const PINGS: u64 = 20;
    let before = session.counters()?;
    session.tell("a", "shell")?;
    session.in_shell(
        "a",
        &format!("ip link set eth0 promisc on; ip link set eth0 address {STATIC_OF_A}"),
        seconds(60),
    )?;
    // The shell's prompt has no end of line.
    let line = format!(
        "ping -q -c {PINGS} -i 0.02 -W 5 10.0.0.2 | awk '/packets transmitted/ {{ printf \"\\nSC {{\\\"do\\\":\\\"pings\\\",\\\"received\\\":%d}}\\n\", $4 }}'"
    );
    session.in_shell("a", &line, seconds(120))?;
    let pings = session.result("a", "pings", seconds(60))?;
    let after = session.counters()?;
    let figures = &mut context.figures;
    figures.exactly("pings answered to a's static MAC address", number(&pings, "received")?, PINGS)?;
    let refused = net(&after, "a")?.all_dropped() - net(&before, "a")?.all_dropped();
    figures.exactly("frames of a, or for it, that were dropped meanwhile", refused, 0)?;
    let answers = stage(&after, "a", "answers")?.frames - stage(&before, "a", "answers")?.frames;
    figures.exactly("answers that the stage counted meanwhile", answers, PINGS)
}

/// The MAC addresses from which a port may send, and those of others.
fn sources(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    const PINGS: u64 = 5;
    pinged_from_static(context, session)?;
    let named =
        session.unread().iter().filter(|event| matches!(event, Event::Report(entry) if entry.text.contains(NIC)));
    context.figures.exactly("sentences of the report with the NIC's address", named.count(), 1)?;
    let b = "52:54:00:00:00:02";
    for (interface, peer, addresses) in [
        (
            "eth0",
            "10.0.0.2",
            &[
                (b, "b's", true),
                (STATIC_OF_A, "a's static", true),
                (GATEWAY, "the gateway's", true),
                (NIC, "the NIC's", true),
                ("52:54:00:00:00:77", "nobody's", false),
                ("52:54:00:00:00:03", "its own", false),
            ][..],
        ),
        (
            "eth1",
            "10.0.9.2",
            &[
                (b, "b's", true),
                (GATEWAY, "the gateway's", true),
                ("52:54:00:00:00:77", "nobody's", true),
                ("52:54:00:00:03:04", "its static", false),
                ("52:54:00:00:03:03", "its own", false),
            ][..],
        ),
    ] {
        for (mac, whose, refused) in addresses {
            // A change of the address makes Linux forget its neighbours'.
            let line = format!(
                "ip link set {interface} address {mac}; arp -i {interface} -s {peer} {b}; ping -q -c {PINGS} -i 0.02 -W 1 {peer}"
            );
            let what = format!("c's {interface} from {whose} MAC address");
            let cause = refused.then_some("tx_spoofed_mac");
            send(context, session, ["c", "b"], &what, &line, &[("echo", PINGS)], cause)?;
        }
    }
    Ok(())
}

/// c claims the IP addresses of b and of the gateway by ARP: as an answer, as a request, and as a probe. It may say that it has its own.
fn arp(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    for (interface, own) in [("eth0", "10.0.0.3"), ("eth1", "10.0.9.13")] {
        for (address, whose, refused) in
            [("10.0.0.2", "b's", true), (SECOND_HOST_ADDRESS, "the gateway's", true), (own, "its own", false)]
        {
            let line = format!("for way in A U D; do arping -q -$way -c {ARP} -I {interface} {address} & done; wait");
            let what = format!("c's {interface} has {whose} IP address, by ARP");
            let cause = refused.then_some("tx_spoofed_address");
            send(context, session, ["c", "b"], &what, &line, &[("arp", 3 * ARP)], cause)?;
        }
    }
    Ok(())
}

/// The same by neighbour discovery. Linux solicits an address that it is given, to see whether somebody has it, and advertises it then.
fn neighbours(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    for (interface, own) in [("eth0", "fd00::3"), ("eth1", "fd00::13")] {
        let settled = format!("while ip -6 addr show dev {interface} | grep -q tentative; do sleep 0.1; done");
        let on = format!(
            "cd /proc/sys/net/ipv6/conf/{interface}; for f in accept_ra router_solicitations; do echo 0 >$f; done; \
             echo 1 >ndisc_notify; echo 0 >disable_ipv6; {settled}"
        );
        session.in_shell("c", &on, seconds(60))?;
        for (address, whose, refused) in [
            ("fd00::2", "b's IPv6", true),
            ("fe80::5054:ff:fe00:2", "b's link-local", true),
            ("fec0::2", "the gateway's IPv6", true),
            ("fe80::5055:aff:fe00:9fe", "the gateway's link-local", true),
            (own, "its own IPv6", false),
        ] {
            let address = format!("{address}/64 dev {interface}");
            let line = format!("ip -6 addr add {address}; {settled}; ip -6 addr del {address}");
            let what = format!("c's {interface} has {whose} address, by neighbour discovery");
            let cause = refused.then_some("tx_spoofed_address");
            send(context, session, ["c", "b"], &what, &line, &[("solicitation", 1), ("advertisement", 1)], cause)?;
        }
    }
    Ok(())
}
