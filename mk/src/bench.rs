//! `cargo mk bench`: figures, with the aim each has.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::Outcome;

/// What to measure.
#[derive(Subcommand)]
pub enum What {
    /// Size of the image, memory kept, exits and time to a guest's user space.
    Boot {
        /// Also writes the figures to this file, as one JSON object.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

/// `cargo mk bench`.
pub fn verb(what: &What) -> Result<Outcome> {
    let What::Boot { json } = what;
    bail!("not yet: {json:?}")
}
