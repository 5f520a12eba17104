//! `cargo mk doctor`: one static program that looks at a machine before sidecore is on it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::outcome::Outcome;
use crate::{linux_program, ui};

/// Bytes that the program has to be below: it is copied to servers over slow lines, and to rescue systems that live in memory.
const TOO_MANY: u64 = 5_000_000;

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
    let bytes = fs::metadata(&program).with_context(|| format!("cannot read {}", program.display()))?.len();
    check_size(bytes)?;
    let place = &options.output;
    fs::copy(&program, place).with_context(|| format!("cannot write {}", place.display()))?;
    ui::step(
        "doctor",
        &format!("{} ({bytes} bytes); on the server, as root: modprobe msr; ./{}", place.display(), name(place)),
    );
    Ok(Outcome::Good)
}

fn check_size(bytes: u64) -> Result<()> {
    ensure!(
        bytes < TOO_MANY,
        "the program has {bytes} bytes, and has to have less than {TOO_MANY}: a dependency has become too large"
    );
    Ok(())
}

fn name(place: &std::path::Path) -> String {
    place.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_5_mb_is_refused() {
        assert!(check_size(TOO_MANY - 1).is_ok());
        assert!(check_size(TOO_MANY).is_err_and(|why| why.to_string().contains("has 5000000 bytes")));
    }
}
