//! `cargo mk disk`: a disk image with Debian on it, for any UEFI firmware.
//!
//! The image has a GUID partition table, an ESP and an ext4 root file system. Nothing in it knows of sidecore. Login is
//! on ttyS0 and hvc0: user `root`, password `root`.

mod build;
mod esp;
pub mod fat;
pub mod gpt;
mod judge;
mod mode;
mod root;
pub mod seed;
mod small;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;

pub use judge::{judge, judge_fat, judge_table};
pub use small::{Small, small};

use crate::outcome::Outcome;
use crate::{tools, ui};

/// Bytes of an image if no size is given.
const SIZE: u64 = 1 << 30;

/// What `cargo mk disk` can be told.
#[derive(Args)]
pub struct Options {
    /// Where to put the image. What is there is replaced.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The size of the disk: bytes, or a number with K, M, G or T (1G is 2^30). The file is sparse.
    #[arg(long, value_parser = size, default_value = "1G")]
    size: u64,
    /// A Debian package to install besides the usual ones. May be given several times.
    #[arg(long = "package", value_name = "NAME")]
    packages: Vec<String>,
    /// Builds from the packages that the archive has now, even if an image of these inputs is there.
    #[arg(long)]
    again: bool,
}

/// `cargo mk disk`.
pub fn verb(options: &Options) -> Result<Outcome> {
    let image = build::image(options.size, &options.packages, options.again)?;
    let mut copy = Command::new("cp");
    copy.args(["--sparse=always", "--reflink=auto", "--"]).arg(&image).arg(&options.output);
    tools::quietly(&mut copy, "cp").with_context(|| format!("cannot write {}", options.output.display()))?;
    let (place, mib) = (options.output.display(), options.size >> 20);
    ui::step("disk", &format!("{place} ({mib} MiB, sparse); login on ttyS0 and hvc0: root, password root"));
    Ok(Outcome::Good)
}

/// An image of the usual size with the usual packages and these. Nobody may write to it.
pub fn image(packages: &[&str]) -> Result<PathBuf> {
    let packages: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    build::image(SIZE, &packages, false)
}

/// Reads a size: `1500M`, `2G`, `1073741824`.
pub fn size(text: &str) -> Result<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => bail!("{unit:?} is no unit: K, M, G or T"),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.with_context(|| format!("{text:?} is no size: 1500M or 2G, for example"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_do_not_wrap() {
        assert_eq!(size("1G").unwrap(), SIZE);
        assert_eq!(size("1500M").unwrap(), 1500 << 20);
        assert_eq!(size("2GiB").unwrap(), 2 << 30);
        assert_eq!(size("1048576").unwrap(), 1 << 20);
        for bad in ["", "G", "-1G", "1.5G", "16777216T", "1X", "1GB", "1iB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
