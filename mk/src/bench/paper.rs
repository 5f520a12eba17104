//! `cargo mk bench paper`: runs the experiments of the papers, and draws them: one HTML page, and a file with all numbers.
//!
//! Each part has a platform of its own. A run replaces the parts that it runs, and keeps the others of the folder.

mod chart;
mod crowd;
mod load;
mod page;
mod sections;
mod svg;
#[cfg(test)]
mod tests;
mod window;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use scenarios::platform::Platform;
use serde_json::{Map, Value, json};

use super::exits::{self, Extent};
use crate::emulator;
use crate::outcome::Outcome;
use crate::ui;

/// The name of the file with all numbers.
const NUMBERS: &str = "paper.json";
/// The name of the page.
const PAGE: &str = "paper.html";

/// What to run, and where to draw it.
#[derive(Args)]
pub struct Options {
    /// The folder of the page, `paper.html`, and of all numbers, `paper.json`.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Where to run [default: kvm where it nests, otherwise qemu].
    #[arg(long)]
    platform: Option<Platform>,
    /// Runs only this part, and keeps the others of the folder. May be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Runs with small amounts, and without Linux guests.
    #[arg(long)]
    quick: bool,
    /// Runs nothing: draws the numbers of this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["platform", "only", "quick"])]
    from: Option<PathBuf>,
}

/// A part of the experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Exits and interrupts for each way to ask and to complete (ELVIS 4.3, 4.4, 4.7).
    Exits,
    /// 1 to 7 guests on one engine, with both schedules (ELVIS 4.3, 4.4, 4.5, 4.7).
    Scaling,
    /// Requests beside streams, with both schedules (ELVIS 4.6).
    Mixed,
    /// The busy part of the engine's time against the load (VPE 5.1).
    Load,
}

impl Part {
    /// Its key in the file.
    const fn key(self) -> &'static str {
        match self {
            Self::Exits => "exits",
            Self::Scaling => "scaling",
            Self::Mixed => "mixed",
            Self::Load => "load",
        }
    }

    /// Runs it. Returns its numbers, and whether all bounds were met.
    fn run(self, platform: Platform, quick: bool) -> Result<(Map<String, Value>, bool)> {
        let (numbers, good) = match self {
            Self::Exits => {
                let extent = if quick { Extent::Quick } else { Extent::Full };
                let results = exits::run(platform, None, None, extent)?;
                results.print();
                (results.to_json(), results.good())
            }
            Self::Scaling => (crowd::scaling(platform, quick)?, true),
            Self::Mixed => (crowd::mixed(platform, quick)?, true),
            Self::Load => (load::run(platform, quick)?, true),
        };
        let mut numbers = numbers.as_object().cloned().context("a part is no object")?;
        numbers.insert("platform".to_owned(), json!(platform.to_string()));
        numbers.insert("quick".to_owned(), json!(quick));
        Ok((numbers, good))
    }
}

/// `cargo mk bench paper`. `Failed` if a bound of `bench exits` was missed.
pub fn verb(options: &Options) -> Result<Outcome> {
    let Options { output, platform, only, quick, from } = options;
    if let Some(file) = from {
        let results = read(file)?;
        write(output, &results)?;
        return Ok(Outcome::Good);
    }
    let chosen = emulator::choose(*platform)?;
    emulator::announce(chosen, platform.is_some());
    fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    let file = output.join(NUMBERS);
    let mut results = if file.exists() { read(&file)? } else { json!({ "bench": "paper" }) };
    let parts: &[Part] = if only.is_empty() { Part::value_variants() } else { only };
    let mut good = true;
    for part in parts {
        ui::step("bench", &format!("paper: {}", part.key()));
        let (numbers, met) = part.run(chosen, *quick)?;
        good &= met;
        results[part.key()] = numbers.into();
        // What has run is kept if the next part fails.
        write(output, &results)?;
    }
    Ok(Outcome::of(good))
}

/// Reads a file of numbers.
fn read(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let results: Value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))?;
    ensure!(results["bench"] == "paper", "{} is not of `cargo mk bench paper`", file.display());
    Ok(results)
}

/// Writes both files.
fn write(folder: &Path, results: &Value) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let page = page::page(&sections::sections(results))?;
    for (name, text) in [(NUMBERS, format!("{results:#}\n")), (PAGE, page)] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    ui::step("bench", &format!("written: {}", folder.join(PAGE).display()));
    Ok(())
}
