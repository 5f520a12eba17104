//! The program: its command line, and how it ends.
//!
//! Exit codes: 0 ended by a signal, 2 wrong command line or configuration, 3 a socket or a thread was not available.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sidecore_vhost::{config, server};

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
