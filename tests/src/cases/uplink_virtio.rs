//! A virtio network device as uplink.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use control::{Command, Counters, TraceStep};
use net::counters::UplinkDrop;
use sha2::{Digest as _, Sha256};
use sidecore_pcapng::live::Live;
use trace::capture::Way;
use trace::frames::{FIRST_UPLINK_CAUSE, Port};
use trace::record::NO_GUEST;
use trace::stream::Table;
use trace::{Kind, Record};

use super::outside::nobody_complains;
use super::trace::{Read as Traced, collect, command, ended};
use crate::boot::{Boot, alone};
use crate::counts::uplinks;
use crate::guests::{Guest, server, with_entries};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{HOST_ADDRESS, SECOND_HOST_ADDRESS, Setup, Uplink};

const PINGS: u64 = 200;
const FILE_BYTES: usize = 16 << 20;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let virtio = "a virtio network device as uplink: pings, and a file in and out again, from two guests";
    let two = "two uplinks: a guest reaches a network by each, another only its own; each frame at an uplink has its \
               records, as many as the counters say; captured frames of both are the counters', and tshark reads as many pings from a pipe";
    vec![
        alone(Scenario::new("uplink-virtio", virtio, QEMU).taking_turns(), uplink_virtio),
        alone(Scenario::new("two-uplinks", two, QEMU).taking_turns(), two_uplinks),
        alone(Scenario::new("two-x520", "the same with two 82599s", QEMU).taking_turns(), two_x520),
    ]
}

/// Makes a file that differs in each run.
fn random_file() -> Result<Vec<u8>> {
    let mut file = vec![0; FILE_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut file)?;
    Ok(file)
}

/// Serves `file` once over HTTP on this machine's loopback. Returns the port.
fn serve(file: Vec<u8>) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut request = [0; 1024];
        let mut got = 0;
        while got < request.len() && !request[..got].ends_with(b"\r\n\r\n") {
            match stream.read(&mut request[got..])? {
                0 => break,
                n => got += n,
            }
        }
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", file.len())?;
        stream.write_all(&file)
    });
    Ok(port)
}

/// Receives one file on this machine's loopback. Returns the port, and a thread that returns the file.
fn take() -> Result<(u16, thread::JoinHandle<std::io::Result<Vec<u8>>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let taken = thread::spawn(move || {
        let mut file = Vec::new();
        listener.accept()?.0.read_to_end(&mut file)?;
        Ok(file)
    });
    Ok((port, taken))
}

fn two_uplinks(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let setup = with_two_ports("two-uplinks", Uplink::TwoVirtio, "00:10.0");
    let mut setup = with_entries(setup, "[trace]\nmemory = \"1M\"\non = [\"frames\", \"drops\"]\n\n");
    setup.memory_mib += 8;
    let mut session = context.boot(&setup)?;
    let arrived = collect(&mut session);
    session.ask(command(TraceStep::Save, false, ""), seconds(20))?;
    // The guests ping from their start on.
    let begin = session.counters()?;
    for name in ["left", "right"] {
        session.ask(Command::Capture { guest: name.to_owned(), filter: String::new() }, seconds(20))?;
    }
    let begun = session.counters()?;
    two_networks(context, &mut session, ["00:11.0", "00:10.0"])?;
    let before = session.counters()?;
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    let bytes = ended(&mut session, &arrived)?;
    let after = session.counters()?;
    traced(context, &bytes, [&before, &after])?;
    captured(context, &mut session, [&begin, &begun], [&before, &after])?;
    session.shut_down().map(drop)
}

/// Has the frames sent that were captured at the uplinks, and checks them against the counters: the captures began between the
/// counters of `begin` and ended between those of `end`. tshark reads them from a pipe, as pcap-ng.
fn captured(
    context: &mut Context<'_>,
    session: &mut Session,
    begin: [&Counters; 2],
    end: [&Counters; 2],
) -> Result<()> {
    let arrived = collect(session);
    // The end of the trace has ended the captures. What they have is in the ring.
    session.ask(Command::Captures, seconds(20))?;
    let bytes = ended(session, &arrived)?;
    let trace = sidecore_trace::read::bytes_of(&bytes).context("no captured frames were sent")?;
    context.figures.exactly("captured frames lost", trace.captures_lost, 0)?;
    for (number, name) in (0_u8..).zip(["left", "right"]) {
        let slot = Port::uplink(number).slot;
        let of = || trace.captures.iter().map(|capture| capture.frame).filter(move |frame| frame.slot == slot);
        let mut compare = |found: u64, counter: &str| {
            let count = |counters: &Counters| anyhow::Ok(counters.uplink(name).context("no uplink")?.count(counter));
            let (from, to) = (begin.map(count), end.map(count));
            let ([first, begun], [last, after]) = (from, to);
            let wanted = last?.saturating_sub(begun?)..=after?.saturating_sub(first?);
            ensure!(wanted.contains(&found), "captured at {name}: {found}; {counter}: {wanted:?}");
            context.figures.note(&format!("captured at {name}, by {counter}"), found as f64);
            Ok(())
        };
        compare(of().filter(|frame| frame.way == Way::In).count() as u64, "rx_packets")?;
        compare(of().filter(|frame| frame.way == Way::Out && frame.dropped.is_none()).count() as u64, "tx_packets")?;
        for drop in UplinkDrop::ALL.into_iter().filter(|drop| *drop != UplinkDrop::Unsent) {
            let code = FIRST_UPLINK_CAUSE | drop as u8;
            compare(of().filter(|frame| frame.dropped == Some(code)).count() as u64, drop.name())?;
        }
    }
    let mut tshark = context.tshark(&["frame.interface_name", "icmp.type"])?;
    tshark.args(["-Y", "icmp && !icmpv6"]);
    let mut tshark = tshark.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start tshark")?;
    let mut live = Live::new(tshark.stdin.take().context("no pipe")?, "sidecore's tests")?;
    // Pieces of any length, as a port gives them.
    bytes.chunks(1000).try_for_each(|piece| live.take(piece))?;
    live.end()?;
    context.figures.exactly(
        "frames written as pcap-ng, less those captured",
        live.frames().abs_diff(trace.captures.len() as u64),
        0,
    )?;
    drop(live);
    let read = tshark.wait_with_output()?;
    ensure!(read.status.success(), "tshark ends with {:?}", read.status.code());
    let said = String::from_utf8_lossy(&read.stdout);
    for (name, pings) in [("left", 2 * PINGS), ("right", PINGS)] {
        for (kind, what) in [("8", "requests"), ("0", "replies")] {
            let found = said.lines().filter(|line| **line == format!("uplink {name}\t{kind}")).count();
            // Those sent until the first answer are there too.
            context.figures.at_least(&format!("echo {what} that tshark reads at {name}"), found as u64, pings)?;
        }
    }
    Ok(())
}

/// Checks the records of frames at the uplinks against the counters. The trace was switched off between the two counters.
fn traced(context: &mut Context<'_>, bytes: &[u8], counters: [&Counters; 2]) -> Result<()> {
    let read = Traced::new(bytes)?;
    for (number, name) in (0_u8..).zip(["left", "right"]) {
        let of = |kind| {
            let slot = u64::from(Port::uplink(number).slot);
            read.records(kind).map(|(_, record)| record).filter(move |record| record.a >> 32 == slot)
        };
        let figure = |records: Vec<Record>| {
            let strange = records.iter().filter(|record| record.guest != NO_GUEST || record.unit != number).count();
            let bytes: u64 = records.iter().map(|record| record.a & 0xffff_ffff).sum();
            (records.len() as u64, bytes, strange)
        };
        let uplinks = counters.map(|counters| counters.uplink(name).context("an uplink is missing"));
        let [before, after] = uplinks;
        let (before, after) = (before?, after?);
        let mut compare = |what: &str, found: u64, counter: &str| {
            let counted = before.count(counter)..=after.count(counter);
            ensure!(counted.contains(&found), "{what} at {name}: {found} traced, {counted:?} counted");
            context.figures.note(&format!("{what} at {name}"), found as f64);
            Ok(())
        };
        for (kind, way) in [(Kind::FrameIn, "rx"), (Kind::FrameOut, "tx")] {
            let (count, bytes, strange) = figure(of(kind).collect());
            ensure!(strange == 0, "{strange} records of {name} have a guest or another unit");
            compare(kind.name(), count, &format!("{way}_packets"))?;
            compare(&format!("bytes of {}", kind.name()), bytes, &format!("{way}_bytes"))?;
        }
        for drop in UplinkDrop::ALL {
            let code = FIRST_UPLINK_CAUSE | drop as u8;
            let dropped = of(Kind::FrameDropped).filter(|record| record.code == code).count() as u64;
            ensure!(read.name(Table::Cause, code.into())? == drop.name(), "the name of cause {code}");
            compare(drop.name(), dropped, drop.name())?;
        }
        let switched = of(Kind::FrameSwitched).count() as u64;
        context.figures.at_least(&format!("frames from the wire that were switched, at {name}"), switched, PINGS)?;
    }
    Ok(())
}

fn two_x520(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let setup = with_two_ports("two-x520", Uplink::TwoX520, "01:00.0");
    let (mut session, nics) = context.boot_with_two(&setup)?;
    two_networks(context, &mut session, ["02:00.0", "01:00.0"])?;
    session.shut_down()?;
    nics.iter().try_for_each(|nic| nobody_complains(context, nic, "sidecore"))
}

/// A server with two guests and two uplinks. The uplink `right` names its NIC. The uplink `left` takes the NIC that no
/// uplink names. Guest a has a device behind each.
fn with_two_ports(name: &str, uplink: Uplink, right: &str) -> Setup {
    let a = Guest::new(1)
        .net("port = \"left\"\n\n[[guest.net]]\nmac = \"52:54:00:00:09:01\"\nport = \"right\"")
        .then("interface:eth1:10.0.9.1/24")
        .then(format!("ping:{PINGS}:{SECOND_HOST_ADDRESS}"))
        .then(format!("ping:{PINGS}:{HOST_ADDRESS}"))
        .then("wait");
    // Guest b uses an address of the other network, but is not behind that network's uplink.
    let b = Guest::new(2)
        .then(format!("ping:{PINGS}:{HOST_ADDRESS}"))
        .then("identity:10.0.9.2/24")
        .then(format!("pings:20:{SECOND_HOST_ADDRESS}:2"))
        .then("wait");
    let mut setup = server(name, &[a, b]);
    setup.uplink = uplink;
    let ports = ["name = \"left\"\ndevice = \"first\"".to_owned(), format!("name = \"right\"\ndevice = \"{right}\"")];
    with_entries(setup, &ports.map(|port| format!("[[port]]\n{port}\n\n")).concat())
}

/// Each guest reaches the networks behind its own uplinks and no other. `devices`: the devices of the left and the
/// right uplink.
fn two_networks(context: &mut Context<'_>, session: &mut Session, devices: [&str; 2]) -> Result<()> {
    for (guest, peer) in [("a", SECOND_HOST_ADDRESS), ("a", HOST_ADDRESS), ("b", HOST_ADDRESS)] {
        let ping = session.result(guest, "ping", seconds(240))?;
        ensure!(ping["peer"] == peer, "{guest} pinged another than {peer}: {ping}");
        context.figures.exactly(
            &format!("pings from {guest} to {peer} answered"),
            number(&ping, "received")?,
            PINGS,
        )?;
    }
    let wrong = session.result("b", "pings", seconds(240))?;
    context.figures.exactly("pings from b by the uplink of others answered", number(&wrong, "received")?, 0)?;

    let counters = session.counters()?;
    let uplink = |name| counters.uplink(name).with_context(|| format!("no uplink is called {name}"));
    let (left, right) = (uplink("left")?, uplink("right")?);
    ensure!([&left.device, &right.device] == devices, "{} and {}", left.device, right.device);
    let figures = &mut context.figures;
    // There are also frames of ARP and neighbour discovery, and those sent until the first answer.
    for (uplink, pings) in [(left, 2 * PINGS), (right, PINGS)] {
        for (kind, way) in [("tx_packets", "out"), ("rx_packets", "in")] {
            let counted = uplink.count(kind);
            figures.at_least(&format!("packets {way} by {}", uplink.name), counted, pings)?;
            figures.at_most(&format!("packets {way} by {}, and no others", uplink.name), counted, pings + PINGS / 2)?;
        }
        figures.exactly(&format!("packets of guests back by {}", uplink.name), uplink.count("rx_own_source"), 0)?;
        figures.exactly(&format!("packets dropped by {}", uplink.name), uplink.count("tx_dropped"), 0)?;
    }
    Ok(())
}

fn uplink_virtio(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let file = random_file()?;
    let sum = Sha256::digest(&file).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (from, (to, taken)) = (serve(file.clone())?, take()?);
    let a = Guest::new(1).then(format!("ping:{PINGS}:{HOST_ADDRESS}")).then("wait");
    let b = Guest::new(2)
        .peer(1)
        .then(format!("ping:{PINGS}:{HOST_ADDRESS}"))
        .then(format!("ping:{PINGS}"))
        .then(format!("fetch:{HOST_ADDRESS}:{from}"))
        .then(format!("put:{HOST_ADDRESS}:{to}"))
        .then("wait");
    let b = b.memory_mib(192);
    let mut setup = server("uplink-virtio", &[a, b]);
    setup.uplink = Uplink::Virtio;
    let mut session = context.boot(&with_entries(setup, "[[port]]\ndevice = \"first\"\n\n"))?;
    for (guest, times) in [("a", 1), ("b", 2)] {
        for _ in 0..times {
            let ping = session.result(guest, "ping", seconds(240))?;
            let peer = ping["peer"].as_str().unwrap_or("nobody").to_owned();
            context.figures.exactly(
                &format!("pings from {guest} to {peer} answered"),
                number(&ping, "received")?,
                PINGS,
            )?;
        }
    }
    let fetched = session.result("b", "fetch", seconds(240))?;
    context.figures.exactly("bytes fetched", number(&fetched, "bytes")?, FILE_BYTES)?;
    ensure!(fetched["sha256"] == sum.as_str(), "the file that was fetched is another: {fetched}");
    session.result("b", "put", seconds(240))?;
    let back = taken.join().ok().context("the taker panicked")??;
    context.figures.exactly(
        "bytes that came back as they were",
        back.iter().zip(&file).filter(|(a, b)| a == b).count(),
        FILE_BYTES,
    )?;

    let counters = session.counters()?;
    let figures = &mut context.figures;
    let segments = FILE_BYTES as u64 / 1460;
    figures.at_least("packets out", uplinks(&counters, "tx_packets"), segments + 2 * PINGS)?;
    figures.at_least("packets in", uplinks(&counters, "rx_packets"), segments + 2 * PINGS)?;
    // The guests send unsegmented TCP frames, and this NIC does not segment. How much TCP joins into a frame depends on how
    // fast the acknowledgements come: 0.48 to 0.79 of the segments were seen.
    figures.at_least("segments cut on their way out", uplinks(&counters, "tx_segments"), segments / 8)?;
    figures.exactly("packets out that were dropped", uplinks(&counters, "tx_dropped"), 0)?;
    figures.exactly("malformed packets in", uplinks(&counters, "rx_malformed"), 0)?;
    session.shut_down()?;
    Ok(())
}
