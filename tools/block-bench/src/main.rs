//! The front-end of `cargo mk bench block`: libblkio's driver `virtio-blk-vhost-user` at disks of any back-end. The same
//! program verifies a disk, measures several in turn, and serves the floor.
//!
//! Exit codes: 0 measured or verified, 1 not.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use block_bench::{floor, measure, verify};
use clap::{Parser, Subcommand};

/// Verifies and measures vhost-user disks by libblkio.
#[derive(Parser)]
#[command(name = "block-bench", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Writes patterns to the whole disk, reads them back, discards and zeroes. The disk's contents are lost.
    Verify {
        /// The disk's socket.
        #[arg(long)]
        socket: PathBuf,
        /// Rounds of random writes and reads.
        #[arg(long, default_value_t = 4)]
        rounds: u64,
    },
    /// Writes each block of a disk once.
    Fill {
        /// The disk's socket.
        #[arg(long)]
        socket: PathBuf,
    },
    /// Reads blocks of 4 KiB at random, of each disk in turn. Prints one JSON object.
    Measure(measure::Plan),
    /// Reads a number of blocks of 4 KiB of one disk, in batches. To be used while the back-end's instructions are counted.
    Count {
        /// The disk's socket.
        #[arg(long)]
        socket: PathBuf,
        /// Requests.
        #[arg(long)]
        requests: u64,
        /// Requests of a batch.
        #[arg(long, default_value_t = 32)]
        depth: usize,
        /// Milliseconds to stay connected without requests.
        #[arg(long, default_value_t = 0)]
        hold: u64,
        /// The back-end's process. It is stopped while a batch is offered, so it finds the whole batch.
        #[arg(long)]
        process: i32,
    },
    /// Serves a disk of zeroes by a bare copy loop, until it is killed.
    Floor {
        /// The socket to listen at.
        #[arg(long)]
        socket: PathBuf,
        /// Bytes of the disk, a multiple of 4 KiB.
        #[arg(long)]
        bytes: usize,
        /// The processor of the copy loop.
        #[arg(long)]
        core: usize,
    },
}

fn main() -> ExitCode {
    match carry_out(Arguments::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("block-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(what: What) -> Result<()> {
    match what {
        What::Verify { socket, rounds } => println!("{}", verify::verify(&socket, rounds)?),
        What::Fill { socket } => verify::fill(&socket)?,
        What::Measure(plan) => println!("{}", measure::measure(&plan)?),
        What::Count { socket, requests, depth, hold, process } => {
            measure::count(&socket, process, requests, depth, hold)?;
        }
        What::Floor { socket, bytes, core } => floor::serve(&socket, bytes, core)?,
    }
    Ok(())
}
