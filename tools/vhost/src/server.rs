//! Starts the threads, supervises them, and prints the counters at the end.

#![allow(unsafe_code, reason = "asks for the widest copy routine, and keeps a thread on a processor")]

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::config::Mac;
use anyhow::{Context as _, Result, bail};
use block::backend::Block;
use block::flushes::Record;
use block::pair::Pair as Storages;
use block::ram::Ram;
use engine::engine::Engine;
use engine::observe::Unobserved;
use engine::pair::Pair;
use engine::requests::{Rates, Requests};
use engine::schedule::{Chosen, Fine, Limits, PerDevice};
use memory::copy::Copier;
use net::backend::Net;
use net::policy::configured::{Known, Rules, owner_of_guest};
use vhost::vhost_user::{BackendReqHandler, Error};
use virtio::fault::Fault;

use crate::backends::{Control, IoEngine};
use crate::calls::{self, Calls};
use crate::client::Client;
use crate::config::{self, Config};
use crate::control::EngineControl;
use crate::disk::Disk;
use crate::file::Files;
use crate::kicks::Kicks;
use crate::port::Port;
use crate::tracked::InOrder;
use crate::{clock, early, map, signals, statistics};

/// Time between two checks of the clients.
const BEAT: Duration = Duration::from_millis(100);
/// Longest turn of the engine before the server checks whether an eventfd blocks it.
const STALLED: Duration = Duration::from_secs(1);
/// What the operator is told of a disk once.
const FLUSH_FAILED: &str = "a FLUSH has failed, so completed writes may be lost; every FLUSH fails from now on, until the \
                            program is started again";
/// Seconds after which the switch forgets a silent address (IEEE 802.1Q, 8.8.3).
const AGE: u64 = 300;

/// Makes an engine without devices.
///
/// # Errors
/// Linux does not have what disks in files need.
pub fn new_engine(control: &'static Control, config: &Config) -> Result<Box<IoEngine>> {
    let microsecond = clock::ticks_per_microsecond();
    // The same limits as in the hypervisor, because the two must behave alike.
    let schedule = match config.scheduling {
        config::Scheduling::Fine => Chosen::Fine(Fine::new(Limits {
            requests: 256,
            bytes: 256 << 10,
            quantum: 4 * microsecond,
            least: 16,
            stall: microsecond / 2,
        })),
        config::Scheduling::PerDevice => Chosen::PerDevice(PerDevice::new(64)),
    };
    let seed = clock::now().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let net = Net::new(seed, AGE * 1_000_000 * microsecond);
    let files = Files::new(config.disk.iter().any(|disk| disk.file.is_some()))?;
    let block = Block::new(Storages::new(Ram::new(), files));
    Ok(Box::new(Engine::new(control, Pair::new(net, InOrder(block)), schedule, Calls)))
}

fn requests(requests: config::Requests) -> Requests {
    let millisecond = 1000 * clock::ticks_per_microsecond();
    match requests {
        config::Requests::Poll => Requests::Poll,
        config::Requests::Notify => Requests::Notify,
        config::Requests::Adaptive => {
            Requests::Adaptive(Rates { kicks: 10, window: 20 * millisecond, quiet: 50 * millisecond })
        }
    }
}

/// The rules of a port.
fn rules(config: &Config, number: usize, port: &config::Port) -> Option<Rules> {
    let named = |name: &str, net: usize| config.named(name).filter(|_| net == 0);
    let ports = config.port.iter();
    let owners: Vec<_> = ports.map(|port| owner_of_guest(port.mac.map(Mac), &port.identity, &port.rules)).collect();
    let hz = clock::ticks_per_microsecond() * 1_000_000;
    let known = Known { stages: &config.stages, hz, owners: &owners, port: &named };
    Rules::of_guest(known, number, port.mac.map(Mac), &port.identity, &port.rules)
}

/// Makes the ports, then the disks. Each has its number as its slot in the engine.
///
/// # Errors
/// A disk cannot be made.
pub fn ports(config: &Config) -> Result<Vec<Arc<Port>>> {
    let of = |own: Option<config::Requests>| requests(own.unwrap_or(config.requests));
    let ports = config.port.iter().enumerate();
    let mut all: Vec<Arc<Port>> =
        ports.map(|(n, port)| Arc::new(Port::new(n, port, of(port.requests), rules(config, n, port)))).collect();
    for disk in &config.disk {
        let made = Disk::make(disk).with_context(|| format!("disk {}", disk.socket.display()))?;
        all.push(Arc::new(Port::of_disk(all.len(), disk, of(disk.requests), &made)));
    }
    Ok(all)
}

/// Serves until a signal arrives.
pub fn serve(config: &Config, core: Option<usize>, stats: bool, json: bool) -> Result<()> {
    signals::hold();
    map::guard().context("cannot handle SIGBUS")?;
    let ports = ports(config)?;
    let shared: &'static Control = Box::leak(Box::default());
    let engine = new_engine(shared, config)?;
    let listeners: Vec<UnixListener> = config.sockets().map(listen).collect::<Result<_>>()?;
    let kicks = Kicks::start(ports.iter().map(|port| port.shared).collect()).context("cannot watch for kicks")?;
    let control = Arc::new(EngineControl::new(shared));
    // SAFETY: a process may overwrite its own vector registers, and all CPUs of a Linux machine have the same ones.
    let copier = unsafe { Copier::widest() };
    let engine = thread::Builder::new().name("engine".to_owned()).spawn(move || turn(engine, core))?;
    if let Some(core) = core
        && !pinned(&engine, core)
    {
        shared.stop();
        bail!("the engine's thread cannot be kept on processor {core}");
    }
    let kicks = Arc::new(kicks);
    for (port, listener) in ports.iter().zip(listeners) {
        let client = Client::new(Arc::clone(port), Arc::clone(&control), Arc::clone(&kicks), copier);
        let port = Arc::clone(port);
        thread::Builder::new().name(format!("port {}", port.number)).spawn(move || accept(&listener, &port, client))?;
    }
    let disks = match config.disk.len() {
        0 => String::new(),
        n => format!("{n} disks, "),
    };
    eprintln!("sidecore-vhost: {} ports, {disks}copies with {}", config.port.len(), copier.name());
    let print = |ports: &[Arc<Port>]| {
        let counted = statistics::Counted::now(ports, &shared.counters);
        if json { println!("{}", counted.to_json()) } else { print!("{counted}") }
    };
    look_after(&ports, &control, || {
        if stats {
            print(&ports);
        }
    });
    shared.stop();
    if engine.join().is_err() {
        bail!("the engine's thread has panicked");
    }
    for socket in config.sockets() {
        // Without this a front-end would find a socket that nobody serves.
        let _ = fs::remove_file(socket);
    }
    print(&ports);
    Ok(())
}

/// The engine's thread. `cargo mk bench block` counts what is executed in it, so it stays a function.
#[inline(never)]
fn turn(mut engine: Box<IoEngine>, core: Option<usize>) {
    if core.is_some() {
        // The thread starts only after it is pinned.
        thread::park();
    }
    engine::engine::run(&mut engine, &clock::now, &Unobserved);
}

/// Pins the engine's thread to a processor, and lets it run.
fn pinned(engine: &thread::JoinHandle<()>, core: usize) -> bool {
    use std::os::unix::thread::JoinHandleExt as _;
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: within the set, as checked; the thread has not been joined.
    let result = unsafe {
        libc::CPU_SET(core, &mut set);
        libc::pthread_setaffinity_np(engine.as_pthread_t(), size_of_val(&set), &raw const set)
    };
    engine.thread().unpark();
    result == 0
}

/// Binds a port's socket. It replaces a socket that an earlier process left behind, but not one that is served.
fn listen(path: &Path) -> Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                bail!("socket {} is served by another process", path.display());
            }
            fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
            UnixListener::bind(path)
        }
        other => other,
    }
    .with_context(|| format!("cannot listen on {}", path.display()))
}

/// Serves a port's front-ends, one after the other.
pub fn accept(listener: &UnixListener, port: &Port, client: Client) {
    let client = Arc::new(Mutex::new(client));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                eprintln!("{}: cannot accept a front-end: {error}", port.name);
                thread::sleep(BEAT);
                continue;
            }
        };
        let Ok(early) = stream.try_clone() else { continue };
        port.connected(stream.try_clone().ok());
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&client));
        let end = loop {
            let result = match enable_early(&early, &client) {
                Ok(true) => continue,
                Ok(false) => handler.handle_request(),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) | Err(Error::SocketRetry(_)) => {}
                Err(end) => break end,
            }
        };
        // The device is detached before the connection ends. A front-end that sees the end can then set up again.
        client.lock().unwrap_or_else(PoisonError::into_inner).leave();
        port.connected(None);
        match end {
            Error::Disconnected | Error::SocketBroken(_) | Error::PartialMessage => {
                eprintln!("{}: the front-end has gone", port.name);
            }
            Error::ReqHandlerError(what) => {
                eprintln!("{}: refused, the front-end loses its connection: {what}", port.name)
            }
            other => eprintln!("{}: no such message, the front-end loses its connection: {other}", port.name),
        }
    }
}

/// Handles a message that the crate does not accept yet. Returns false if the message is for the crate.
fn enable_early(stream: &UnixStream, client: &Mutex<Client>) -> Result<bool, Error> {
    if !client.lock().unwrap_or_else(PoisonError::into_inner).is_early() {
        return Ok(false);
    }
    let Some(enable) = early::take(stream).map_err(Error::SocketError)? else { return Ok(false) };
    let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
    let result = client.enable(enable.queue, enable.enable);
    enable.answer(stream, client.acknowledges(), result.is_ok()).map_err(Error::SocketError)?;
    result.map(|()| true)
}

/// Supervises the clients until a signal comes. Calls `each_second` once a second.
fn look_after(ports: &[Arc<Port>], control: &EngineControl, each_second: impl Fn()) {
    let mut faults: Vec<Vec<(Fault, u64)>> = ports.iter().map(|port| port.shared.faults().collect()).collect();
    let mut lost = vec![false; ports.len()];
    let mut second = Instant::now();
    let mut turned = (control.turns(), Instant::now());
    while !signals::wait(BEAT) {
        for port in ports.iter().filter(|port| map::take_lost(port.number)) {
            eprintln!("{}: the front-end has taken back memory that it shared, and loses its connection", port.name);
            port.hang_up();
        }
        for (port, known) in ports.iter().zip(&mut faults) {
            for (now, before) in port.shared.faults().zip(known) {
                if now.1 != before.1 {
                    eprintln!("{}: the driver broke a rule, its device is stopped: {}", port.name, now.0.text());
                }
                *before = now;
            }
        }
        for (port, known) in ports.iter().zip(&mut lost) {
            if !*known && port.record().is_some_and(Record::is_lost) {
                *known = true;
                eprintln!("{}: {FLUSH_FAILED}", port.name);
            }
        }
        if turned.0 != control.turns() {
            turned = (control.turns(), Instant::now());
        } else if turned.1.elapsed() > STALLED
            && let Some(port) = calls::unblock().and_then(|number| ports.get(number))
        {
            eprintln!("{}: the front-end let a call eventfd block, and loses its connection", port.name);
            port.hang_up();
        }
        if second.elapsed() >= Duration::from_secs(1) {
            second = Instant::now();
            each_second();
        }
    }
}
