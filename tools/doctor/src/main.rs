//! `sidecore-doctor`: the command line.

use std::arch::x86_64::__cpuid_count;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use sidecore_doctor::linux::Linux;
use sidecore_doctor::look::{Line, Verdict, look, to_json};
use sidecore_doctor::save::save;

/// Says whether sidecore will run on this machine, in the words of its own report.
///
/// As root it sees all that it needs; the module `msr` has to be loaded (`modprobe msr`). What it could not read is
/// `unknown`. It changes nothing.
///
/// Exit codes: 0 all that is required is there, 1 something is missing, 2 the command line was wrong, 3 something could
/// not be read, 4 something could not be written.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
    /// Also writes into this folder what a report of a fault needs.
    ///
    /// Its files: `report.json` (what is said here), `cpuid`, `msrs`, `pci`, `cpuinfo`, `iomem`, `command-line` (the
    /// kernel's), an `acpi-…` for each of ACPI's tables, and `not-read` (what was left out or could not be read, and why). The
    /// tables MSDM and SLIC are left out: they may have the key of a Windows. Look through the folder before you send it: the
    /// kernel's command line may have addresses and passwords, ACPI's tables the machine's serial number.
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(verdict) => ExitCode::from(verdict.code()),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(4)
        }
    }
}

fn run(options: &Options) -> Result<Verdict> {
    let linux = Linux::new(Path::new("/"));
    let lines = look(&linux, cpuid);
    let verdict = Verdict::of(&lines);
    print(&lines, verdict, options.json).context("cannot write to the standard output")?;
    if let Some(folder) = &options.save {
        save(folder, &lines, &linux, cpuid)?;
        eprintln!("written: {}", folder.display());
    }
    Ok(verdict)
}

fn print(lines: &[Line], verdict: Verdict, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        return writeln!(out, "{}", to_json(lines));
    }
    writeln!(out, "what sidecore will say of this machine:")?;
    for line in lines.iter().filter(|line| line.in_report) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nwhat only Linux shows:")?;
    for line in lines.iter().filter(|line| !line.in_report) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\n{}", verdict.sentence())
}

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = __cpuid_count(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}
