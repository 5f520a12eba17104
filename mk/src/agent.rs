//! `cargo mk agent`: `sidecore-agent` with its units for any Linux, as a Debian package or as an archive with the same tree.
//!
//! The same sources give the same bytes: files have root as their owner and one date. A Debian package is an `ar` archive of a
//! version and two compressed `tar` archives, `control` and `data` (deb(5)).

mod ar;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;

pub use self::tree::SSHD_OPERATOR;
use self::tree::{File, gzip};
use crate::disk::seed;
use crate::outcome::Outcome;
use crate::{linux_program, ui};

/// The version of the package.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const CONTROL: &str = include_str!("../../tools/agent/linux/debian/control");
/// The other files of the archive `control`, with their modes.
const SCRIPTS: [(&str, u32, &str); 4] = [
    ("conffiles", 0o644, include_str!("../../tools/agent/linux/debian/conffiles")),
    ("postinst", 0o755, include_str!("../../tools/agent/linux/debian/postinst")),
    ("prerm", 0o755, include_str!("../../tools/agent/linux/debian/prerm")),
    ("postrm", 0o755, include_str!("../../tools/agent/linux/debian/postrm")),
];

/// Where the package goes.
#[derive(Args)]
pub struct Options {
    /// The package: a Debian package if its name ends with `.deb`, with `.tar.gz` an archive of the same tree. What is there is replaced.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// `cargo mk agent`.
pub fn verb(options: &Options) -> Result<Outcome> {
    let place = &options.output;
    let format = Format::of(place)?;
    let bytes = built(format)?;
    fs::write(place, &bytes).with_context(|| format!("cannot write {}", place.display()))?;
    let how = match format {
        Format::Deb => "in the guest, as root: apt install ./FILE",
        Format::Tar => "in the guest, as root: tar -C / -xzf FILE, and what tools/agent/README.md says",
    };
    ui::step("agent", &format!("{} ({} bytes); {how}", place.display(), bytes.len()));
    Ok(Outcome::Good)
}

/// The format of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Debian's.
    Deb,
    /// An archive with the tree of files.
    Tar,
}

impl Format {
    fn of(place: &Path) -> Result<Self> {
        let name = place.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        match () {
            () if name.ends_with(".deb") => Ok(Self::Deb),
            () if name.ends_with(".tar.gz") => Ok(Self::Tar),
            () => bail!("{name:?} says no format: a name ends with .deb or .tar.gz"),
        }
    }
}

/// Builds the agent, and makes the package.
fn built(format: Format) -> Result<Vec<u8>> {
    let program = linux_program::build("sidecore-agent")?;
    let program = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    package(format, &program, seed::date()?)
}

/// An archive (tar) with Debian's package in it. It is a whole number of sectors, as a disk of a guest wants it.
pub fn disk() -> Result<Vec<u8>> {
    let file = File { path: "sidecore-agent.deb".to_owned(), mode: 0o644, content: built(Format::Deb)? };
    tree::archive(&[file], seed::date()?)
}

/// Makes a package. `program`: the agent, linked statically. `date`: seconds since 1970.
pub fn package(format: Format, program: &[u8], date: u64) -> Result<Vec<u8>> {
    let files = tree::files(program, VERSION)?;
    let data = gzip(&tree::archive(&files, date)?)?;
    if format == Format::Tar {
        return Ok(data);
    }
    let kib = files.iter().map(|file| file.content.len().div_ceil(1024)).sum::<usize>();
    let control = CONTROL.replace("VERSION", VERSION).replace("KIB", &kib.to_string());
    let script = |(path, mode, text): (&str, u32, &str)| File::new(path, mode, text.as_bytes());
    let mut files = vec![File::new("control", 0o644, control.as_bytes())];
    files.extend(SCRIPTS.map(script));
    let control = gzip(&tree::archive(&files, date)?)?;
    ar::archive(&[("debian-binary", b"2.0\n"), ("control.tar.gz", &control), ("data.tar.gz", &data)], date)
}

#[cfg(test)]
mod tests;
