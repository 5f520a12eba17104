//! The I/O engine as a Linux process: the hypervisor's engine crate behind vhost-user sockets. Its guests are QEMU's
//! guests and DPDK's virtio-user ports (the vhost-user protocol is in QEMU's documentation).
//!
//! ```text
//!   front-end (QEMU, DPDK)            this process
//!   ──────────────────────            ────────────────────────────────────────────────────────
//!   messages ── UNIX socket ────────▶ client: a thread for each socket ── control ▶ engine's thread,
//!   memory   ── mapped on both sides: rings and frames ─────────────────────────▶ which polls
//!   kick     ── eventfd ────────────▶ kicks: one thread, for queues that are not polled
//!   call     ◀─ eventfd ───────────── calls: written by the engine's thread
//! ```
//!
//! The clients' threads do what the control core does in the hypervisor: they attach and detach devices by `control`,
//! and never touch a frame. `client` and `map` check what a front-end sends. The engine checks what its driver writes
//! to the rings. An error in either affects that front-end alone.
//!
//! Exit codes: 0 ended by a signal, 2 wrong command line or configuration, 3 a socket or a thread was not available.

mod backends;
mod calls;
mod client;
mod clock;
mod config;
mod control;
mod disk;
mod early;
mod file;
mod inflight;
mod kicks;
mod map;
mod port;
mod server;
mod signals;
mod statistics;
#[cfg(test)]
mod tests;
mod tracked;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// A switch for virtual machines and DPDK programs, and disks: each vhost-user socket is a port of it or a disk.
///
/// It serves until SIGINT or SIGTERM, and prints then what it has counted.
#[derive(Parser)]
#[command(name = "sidecore-vhost", version, max_term_width = 100)]
struct Options {
    /// Makes this socket a port. A front-end connects to it (QEMU: chardev without server=on; DPDK: virtio_user).
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Makes this socket an empty RAM disk (vhost-user-blk), such as /tmp/disk:64M.
    #[arg(long, value_name = "PATH:SIZE", value_parser = config::Disk::from_argument)]
    disk: Vec<config::Disk>,
    /// Ports and disks with addresses, weights and more, in TOML; see tools/README.md.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keeps the engine's thread on this processor.
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Prints the counters each second too.
    #[arg(long)]
    stats: bool,
    /// Prints the counters as one JSON object a line, not as a table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let config = match config::Config::read(options.config.as_deref(), &options.socket, options.disk) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("sidecore-vhost: {error:#}");
            return ExitCode::from(2);
        }
    };
    match server::serve(&config, options.core, options.stats, options.json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sidecore-vhost: {error:#}");
            ExitCode::from(3)
        }
    }
}
