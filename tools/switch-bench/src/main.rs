//! The guests' side of `cargo mk bench switch`: one thread that sends and receives at all ports, the same for every
//! switch, and counts what arrives.
//!
//! All switches start at the beginning, on another core. In each round the switches take turns. A switch that has not
//! its turn is stopped (SIGSTOP), so that nothing has to be set up again. The program prints one JSON object.
//!
//! Exit codes: 0 measured, 1 not measured.

mod floor;
mod frame;
mod latency;
mod pair;
mod sharing;
mod throughput;
mod virtio_user;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use switch_bench::distance::Distance;
use switch_bench::process;
use vhost_front::{Options, Pages, features};

/// Drives switches with vhost-user ports and measures them.
#[derive(Parser)]
#[command(name = "switch-bench", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The processor of this program.
    #[arg(long, default_value_t = 0, global = true)]
    core: usize,
    /// The processor of the switches.
    #[arg(long, default_value_t = 1, global = true)]
    switch_core: usize,
    /// Guests' memory is in 2 MiB pages.
    #[arg(long, global = true)]
    huge: bool,
    /// Rounds.
    #[arg(long, default_value_t = 5, global = true)]
    rounds: usize,
}

#[derive(Subcommand)]
enum What {
    /// Frames a millisecond from one port to the other, of each switch, and of a bare copy loop.
    Throughput {
        /// Bytes of a frame.
        #[arg(long)]
        len: usize,
        /// Milliseconds of a round.
        #[arg(long, default_value_t = 300)]
        milliseconds: u64,
        /// Rings are packed, where a switch has such.
        #[arg(long)]
        packed: bool,
        /// A switch: NAME,PROCESS,SOCKET,SOCKET, and the sockets of ports that are to be idle.
        #[arg(long = "switch", value_parser = pair::Switch::parse)]
        switches: Vec<pair::Switch>,
    },
    /// Nanoseconds from a lone frame's being offered to its being there, of each switch, and of a bare copy loop.
    Latency {
        /// Frames in a round.
        #[arg(long, default_value_t = 20_000)]
        frames: usize,
        /// A switch: NAME,PROCESS,SOCKET,SOCKET.
        #[arg(long = "switch", value_parser = pair::Switch::parse)]
        switches: Vec<pair::Switch>,
    },
    /// Frames a second through each switch, driven by testpmd with DPDK's virtio-user ports.
    VirtioUser {
        /// A switch and its testpmd: NAME,SWITCH,TESTPMD,OUTPUT,ERRORS.
        #[arg(long = "driver", value_parser = virtio_user::Driver::parse)]
        drivers: Vec<virtio_user::Driver>,
        /// Milliseconds of a round.
        #[arg(long, default_value_t = 300)]
        milliseconds: u64,
    },
    /// What a guest's requests wait for while others stream.
    Requests {
        /// A guest's socket. The last sends requests while the others stream.
        #[arg(long = "socket", num_args = 1)]
        sockets: Vec<PathBuf>,
        /// The switch's process.
        #[arg(long)]
        process: i32,
        /// Milliseconds of a measurement.
        #[arg(long, default_value_t = 300)]
        milliseconds: u64,
    },
    /// Streams of short and of long frames, as many as go.
    Streams {
        /// A guest's socket.
        #[arg(long = "socket", num_args = 1)]
        sockets: Vec<PathBuf>,
        /// Milliseconds of a round.
        #[arg(long, default_value_t = 300)]
        milliseconds: u64,
    },
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(results) => {
            println!("{results}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("switch-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<serde_json::Value> {
    process::pin(arguments.core).context("cannot keep this thread on its processor")?;
    let pages = if arguments.huge { Pages::Huge } else { Pages::Small };
    // All offloads that a switch offers are negotiated, because they cost the switch something even for frames without
    // offloads.
    let offloads = features::CSUM
        | features::GUEST_CSUM
        | features::HOST_TSO4
        | features::HOST_TSO6
        | features::GUEST_TSO4
        | features::GUEST_TSO6;
    let rings = Options::default();
    let options = Options { pages, features: rings.features | offloads, ..rings };
    let rounds = arguments.rounds;
    let distance = Distance::start(arguments.switch_core);
    let floor = || pair::Floor::start(arguments.switch_core, &options);
    match &arguments.what {
        What::Throughput { len, milliseconds, packed, switches } => {
            let form = if *packed { features::RING_PACKED } else { 0 };
            let formed = Options { features: options.features | form, ..options };
            throughput::measure(switches, (&floor()?, &distance), &formed, *len, *milliseconds, rounds)
        }
        What::Latency { frames, switches } => {
            latency::measure(switches, (&floor()?, &distance), &options, *frames, rounds)
        }
        What::VirtioUser { drivers, milliseconds } => virtio_user::measure(drivers, &distance, *milliseconds, rounds),
        What::Requests { sockets, process, milliseconds } => {
            sharing::requests_among_streams(sockets, *process, &distance, &options, *milliseconds, rounds)
        }
        What::Streams { sockets, milliseconds } => sharing::streams(sockets, &options, *milliseconds),
    }
}
