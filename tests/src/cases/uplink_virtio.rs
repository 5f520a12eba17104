//! A virtio network device as the way out of the machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use control::Counters;
use sha2::{Digest as _, Sha256};

use crate::cases::network::number;
use crate::guests::{Guest, server};
use crate::machine::{Content, HOST_ADDRESS, Uplink};
use crate::scenario::{Context, QEMU, Scenario, seconds};

const PINGS: u64 = 200;
const FILE_BYTES: usize = 16 << 20;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![Scenario {
        name: "uplink-virtio",
        about: "a virtio network device as uplink: pings, and a file in and out again, from two guests",
        platforms: QEMU,
        slow_on_bochs: false,
        run: uplink_virtio,
    }]
}

/// A file that is the same in no two runs.
fn random_file() -> Result<Vec<u8>> {
    let mut file = vec![0; FILE_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut file)?;
    Ok(file)
}

/// Serves `file` once over HTTP on this machine's loopback. The port.
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

/// Takes one file on this machine's loopback. The port, and what came.
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

/// What was counted on the uplink under that name.
fn uplink(counters: &Counters, kind: &str) -> u64 {
    let all = counters.engines.iter().flat_map(|engine| &engine.uplink);
    all.filter(|count| count.kind == kind).map(|count| count.count).sum()
}

fn uplink_virtio(context: &mut Context<'_>) -> Result<()> {
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
    for module in &mut setup.modules {
        if let Content::Text(config) = &mut module.content {
            config.insert_str(0, "[[port]]\ndevice = \"first\"\n\n");
        }
    }
    let mut session = context.boot(&setup)?;
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
    figures.at_least("packets out", uplink(&counters, "tx_packets"), segments + 2 * PINGS)?;
    figures.at_least("packets in", uplink(&counters, "rx_packets"), segments + 2 * PINGS)?;
    // The guests leave TCP in rows of segments, which this NIC does not cut.
    figures.at_least("segments cut on their way out", uplink(&counters, "tx_segments"), segments / 2)?;
    figures.exactly("packets out that were dropped", uplink(&counters, "tx_dropped"), 0)?;
    figures.exactly("malformed packets in", uplink(&counters, "rx_malformed"), 0)?;
    session.shut_down()?;
    Ok(())
}
