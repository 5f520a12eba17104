//! The build tool: `cargo mk VERB`.
//!
//! It fetches what is needed by package name into `target/deps`, builds the hypervisor and a bootable disc, starts
//! emulators and runs the scenarios of `tests/`. Everything it writes is under `target/`.
//!
//! Exit codes: 0 all is well, 1 something under test failed, 2 the command line was wrong, 3 it could not be tried
//! (a tool or a file is missing, a build failed).

mod agent;
mod bench;
mod branches;
mod callgrind;
mod check;
mod copy_routine;
mod crates;
mod direct_calls;
mod disk;
mod doctor;
mod e2e;
mod emulator;
mod fetch;
mod functions;
mod fuzz;
mod grub;
mod guest_tools;
mod image;
mod imports;
mod linux_program;
mod management;
mod media;
mod outcome;
mod paths;
mod pvh;
mod rotation;
mod run;
mod sources;
mod terminal;
mod test;
mod tools;
mod two_guests;
mod ui;
mod vmlinux;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use scenarios::platform::Platform;

use outcome::Outcome;

/// Builds sidecore, runs it and tests it.
#[derive(Parser)]
#[command(name = "cargo mk", bin_name = "cargo mk", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Boots sidecore with two Linux guests that ping each other and run iperf3, and prints what was counted.
    Run {
        /// Stays, with the operator's shell on this terminal.
        #[arg(short, long)]
        interactive: bool,
        /// Boots one guest instead: EDK2 starts what is on this disk image, which is an NVMe disk of the machine. Stays, as with -i.
        #[arg(long, value_name = "FILE")]
        disk: Option<PathBuf>,
        /// Where to run [default: kvm where it nests, otherwise qemu].
        #[arg(long)]
        platform: Option<Platform>,
        /// With a hypervisor that is built to check arithmetic for overflows, and its assertions.
        #[arg(long)]
        checked: bool,
    },
    /// Runs every test: the unit tests on this machine, the everyday scenarios, then those whose turn it is in the rotation.
    Test(test::Options),
    /// Formatting, lints and documentation, with warnings as errors; import cycles; licences and versions of the crates.
    Check {
        /// Writes the list of what runs in root mode in SECURITY.md anew.
        #[arg(long)]
        update: bool,
    },
    /// Builds a medium that boots a server: a USB stick, a CD, a folder for booting by network, or one program for UEFI.
    Image(image::Options),
    /// Builds `sidecore-doctor`: one program for any Linux, which says whether sidecore will run on that machine.
    Doctor(doctor::Options),
    /// Builds a package of `sidecore-agent` and its units: any Linux that has it may be the management guest.
    Agent(agent::Options),
    /// Builds a disk image with Debian on it, which boots on any UEFI firmware.
    Disk(disk::Options),
    /// Runs the everyday end-to-end scenarios, or one of all.
    E2e(e2e::Options),
    /// Measures.
    Bench {
        #[command(subcommand)]
        what: bench::What,
        /// A missed aim is a failure: its name goes to standard error, and the exit code is 1.
        #[arg(long, global = true)]
        strict: bool,
    },
    /// Looks for inputs on which a fuzz target fails, with libFuzzer, and writes the table in tests/fuzz/README.md.
    Fuzz(fuzz::Options),
    /// Fetches emulators, GRUB, the guests' kernel and tools, and other switches into target/deps. The other verbs do it by themselves.
    Fetch {
        /// Fetches again even if everything is there.
        #[arg(long)]
        again: bool,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Run { interactive, disk, platform, checked } => run::run(interactive, disk, platform, checked),
        Verb::Test(options) => test::test(&options),
        Verb::Check { update } => check::check(update),
        Verb::Image(options) => image::verb(&options),
        Verb::Doctor(options) => doctor::verb(&options),
        Verb::Agent(options) => agent::verb(&options),
        Verb::Disk(options) => disk::verb(&options),
        Verb::E2e(options) => e2e::verb(&options),
        Verb::Bench { what, strict } => bench::verb(&what, strict),
        Verb::Fuzz(options) => fuzz::verb(&options),
        Verb::Fetch { again } => fetch::ensure(again)
            .and_then(|()| fetch::ensure_peers())
            .and_then(|()| fetch::ensure_guest_tools())
            .and_then(|()| fetch::ensure_ssh())
            .and_then(|()| fetch::ensure_tshark())
            .and_then(|()| fetch::prometheus().map(drop))
            .and_then(|()| fetch::operator_judges().map(drop))
            .and_then(|()| fetch::cloudhv().map(drop))
            .map(|()| Outcome::Good),
    };
    match result {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) => {
            ui::error(&format!("{error:#}"));
            ExitCode::from(3)
        }
    }
}
