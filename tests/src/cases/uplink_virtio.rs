//! A virtio network device as uplink.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

use super::outside::nobody_complains;
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
    let two = "two uplinks: a guest reaches a network by each, another only its own";
    vec![
        alone(Scenario::new("uplink-virtio", virtio, QEMU), uplink_virtio),
        alone(Scenario::new("two-uplinks", two, QEMU), two_uplinks),
        alone(Scenario::new("two-x520", "the same with two 82599s", QEMU), two_x520),
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
    let session = context.boot(&setup)?;
    two_networks(context, session, ["00:11.0", "00:10.0"])
}

fn two_x520(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let setup = with_two_ports("two-x520", Uplink::TwoX520, "01:00.0");
    let (session, nics) = context.boot_with_two(&setup)?;
    two_networks(context, session, ["02:00.0", "01:00.0"])?;
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
fn two_networks(context: &mut Context<'_>, mut session: Session, devices: [&str; 2]) -> Result<()> {
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
    session.shut_down().map(drop)
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
