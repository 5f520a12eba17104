//! `sidecore-vhost`: the I/O engine behind vhost-user sockets, as a Linux process.
//!
//! ```text
//!   front end (QEMU, DPDK)            this process
//!   ── socket ──▶ session: requests ──▶ seat: commands ──▶ engine on its thread
//!   ── memory ──▶ memory_table ──────────────────────────────▶ │ rings, frames
//!   ── kick ────▶ seat::Doorbells ───── Shared::kick ────────▶ │
//!   ◀─ call ───── calls ◀───────────────────────────────────── │ interrupts
//! ```
//!
//! The same crate as on an I/O core of sidecore; what is here is what sidecore's virtual platform is there.
//! Follows the vhost-user specification of QEMU's manual.

mod calls;
mod memory_table;
mod options;
mod seat;
mod session;
mod stats;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use engine::backend::MAX_PORTS;
use engine::control::Control;
use engine::engine::Engine;
use engine::net::{self, Net};
use engine::schedule::RoundRobin;
use engine::shared::Shared;
use vhost::vhost_user::{BackendListener, Error, Listener};

use crate::calls::Calls;
use crate::options::{Cli, Config};
use crate::seat::Seat;
use crate::session::Session;

/// Requests at most from a queue in one visit.
const VISIT: u32 = 64;
/// Seconds after which the switch forgets a silent address (IEEE 802.1Q, 8.8.3).
const AGE: u64 = 300;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    anyhow::ensure!(cli.sockets.len() <= MAX_PORTS, "{} sockets; the switch has {MAX_PORTS} ports", cli.sockets.len());
    let config = cli.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    let calls = Arc::new(Calls::new());
    let control: &'static Control = Box::leak(Box::default());
    let seat = Arc::new(Seat::new(control)?);
    let mut ports = Vec::new();
    for (number, path) in cli.sockets.iter().enumerate() {
        let port = config.ports.get(number).cloned().unwrap_or_default();
        let device = net::config(port.mac.unwrap_or_default(), port.mtu, 1);
        let shared: &'static Shared = Box::leak(Box::new(Shared::new(device)));
        let listener = Listener::new(path, true).with_context(|| path.display().to_string())?;
        let (seat, calls, path) = (seat.clone(), calls.clone(), path.clone());
        std::thread::spawn(move || serve(listener, &path, &seat, &calls, number, shared));
        ports.push(stats::Port { name: cli.sockets[number].display().to_string(), shared });
    }
    let bells = seat.clone();
    std::thread::spawn(move || bells.doorbells.watch());
    if cli.stats {
        std::thread::spawn(move || stats::print(control, &ports, cli.json, Duration::from_secs(1)));
    }
    if let Some(core) = cli.core {
        bind(core)?;
    }
    let clock = clock();
    let mut engine =
        Box::new(Engine::new(control, Net::new(clock.seed, clock.per_second * AGE), RoundRobin::new(VISIT), &*calls));
    engine::engine::run(&mut engine, clock.now);
    Ok(())
}

/// Serves one front end after another on a socket.
fn serve(
    mut listener: Listener,
    path: &Path,
    seat: &Arc<Seat>,
    calls: &Arc<Calls>,
    port: usize,
    shared: &'static Shared,
) {
    loop {
        let session = Arc::new(Mutex::new(Session::new(seat.clone(), calls.clone(), port, shared)));
        let handler = BackendListener::new(&mut listener, session.clone()).and_then(|mut l| l.accept());
        match handler {
            Ok(Some(mut handler)) => loop {
                match handler.handle_request() {
                    Ok(()) => {}
                    // What the request asked for was refused; the front end has been told if it wanted to know.
                    Err(Error::InvalidParam | Error::InvalidOperation(_) | Error::ReqHandlerError(_)) => {}
                    Err(Error::Disconnected) => break,
                    Err(error) => {
                        eprintln!("{}: {error}", path.display());
                        break;
                    }
                }
            },
            Ok(None) => {}
            Err(error) => eprintln!("{}: {error}", path.display()),
        }
        session.lock().unwrap_or_else(std::sync::PoisonError::into_inner).end();
    }
}

/// Binds this thread to a CPU.
fn bind(core: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    anyhow::ensure!(core < rustix::thread::CpuSet::MAX_CPU, "no CPU {core}");
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("CPU {core}"))
}

struct Clock {
    now: fn() -> u64,
    per_second: u64,
    seed: u64,
}

/// The time-stamp counter, and how fast it is against the system's clock.
fn clock() -> Clock {
    let now = tsc;
    let (at, before) = (std::time::Instant::now(), now());
    std::thread::sleep(Duration::from_millis(20));
    let per_second = ((now() - before) as u128 * 1_000_000_000 / at.elapsed().as_nanos().max(1)) as u64;
    Clock { now, per_second, seed: now().wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

#[allow(unsafe_code, reason = "RDTSC is an intrinsic")]
fn tsc() -> u64 {
    // SAFETY: RDTSC reads a counter and has no other effect; every x86_64 Linux lets processes read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
