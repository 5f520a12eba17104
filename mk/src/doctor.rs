//! `cargo mk doctor`: one static program that looks at a machine before sidecore is on it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::outcome::Outcome;
use crate::{linux_program, ui};

/// Where the program goes.
#[derive(Args)]
pub struct Options {
    /// The program's file. What is there is replaced.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// `cargo mk doctor`.
pub fn verb(options: &Options) -> Result<Outcome> {
    let program = linux_program::build("sidecore-doctor")?;
    let place = &options.output;
    fs::copy(&program, place).with_context(|| format!("cannot write {}", place.display()))?;
    let kib = fs::metadata(place).with_context(|| format!("cannot read {}", place.display()))?.len() / 1024;
    ui::step(
        "doctor",
        &format!("{} ({kib} KiB); on the server, as root: modprobe msr; ./{}", place.display(), name(place)),
    );
    Ok(Outcome::Good)
}

fn name(place: &std::path::Path) -> String {
    place.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
