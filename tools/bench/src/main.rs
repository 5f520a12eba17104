//! `sidecore-bench`: the I/O engine against what people would pick instead, on this machine, in one run.
//!
//! One contestant after another gets CPU 1 and two guests' rings over vhost-user; the guests' side is one thread on
//! CPU 0 (`driver`). Rounds are interleaved, so that what the machine does to one it does to all.

mod contest;
mod driver;
mod floor;
mod front;
mod measure;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::contest::Contestant;
use crate::measure::{Case, Result};

#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Frames a second and latency from one guest to another.
    Switch {
        /// Writes the figures to a file as JSON.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Rounds; each contestant runs once in each.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Milliseconds of each measurement.
        #[arg(long, default_value_t = 600)]
        millis: u64,
        /// Frame sizes in bytes.
        #[arg(long, value_delimiter = ',', default_value = "60,1500")]
        sizes: Vec<usize>,
        /// Only these contestants: floor, ours, testpmd.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Without the latency of lone frames.
        #[arg(long)]
        no_latency: bool,
    },
}

fn main() -> anyhow::Result<()> {
    let What::Switch { json, rounds, millis, sizes, only, no_latency } = Cli::parse().what;
    let contestants: Vec<_> = [Contestant::Floor, Contestant::Ours, Contestant::Testpmd]
        .into_iter()
        .filter(|c| c.present() && (only.is_empty() || only.iter().any(|o| o == c.name())))
        .collect();
    let mut results: Vec<Result> = Vec::new();
    let mut cases: Vec<Case> = sizes.iter().map(|&size| Case { size, latency: false, millis }).collect();
    if !no_latency {
        cases.push(Case { size: 60, latency: true, millis });
    }
    for case in &cases {
        for round in 0..rounds {
            for &contestant in &contestants {
                results.push(measure::run(contestant, case, round).with_context(|| contestant.name())?);
            }
        }
    }
    let report = measure::report(&cases, &contestants, &results);
    print!("{}", report.text);
    if let Some(path) = json {
        std::fs::write(&path, serde_json::to_string_pretty(&report.json)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
