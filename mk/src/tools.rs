//! Runs the programs of the fetched tree, and cargo.
//!
//! The tree's programs need a newer C library than many hosts have, so the tree's own loader starts each.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{paths, ui};

const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"];

fn library_path(tree: &Path) -> String {
    LIBRARIES.map(|folder| tree.join(folder).display().to_string()).join(":")
}

/// A command for a program of the tree (`usr/bin/xorriso`), without arguments.
pub fn program(path: &str) -> Command {
    program_in(&paths::tree(), path)
}

/// A command for a program of the peers' tree.
pub fn peer(path: &str) -> Command {
    program_in(&paths::peers(), path)
}

/// A command for a program of the tree with tools for disk images.
pub fn disk_tool(path: &str) -> Command {
    program_in(&paths::disk_tools(), path)
}

/// A command for a program of the tree with programs that test guests' disks.
pub fn guest_tool(path: &str) -> Command {
    program_in(&paths::guest_tools(), path)
}

/// A command for a program of OpenSSH's tree.
pub fn ssh_tool(path: &str) -> Command {
    program_in(&paths::ssh(), path)
}

/// A command for tshark.
pub fn tshark() -> Command {
    program_in(&paths::tshark(), "usr/bin/tshark")
}

/// A command for QEMU's storage daemon. It is not ended with this tool: the command is for another to wrap.
pub fn storage_daemon() -> Command {
    plain_in(
        Command::new(paths::storage_daemon().join(LOADER)),
        &paths::storage_daemon(),
        "usr/bin/qemu-storage-daemon",
    )
}

/// A command for a Perl script of the tree with tools for disk images. Perl and its modules are the tree's own.
pub fn disk_script(path: &str) -> Result<Command> {
    let tree = paths::disk_tools();
    let machine = tree.join("usr/lib/x86_64-linux-gnu");
    // The modules' folders bear Perl's version.
    let mut folders = vec![machine.join("perl-base")];
    for parent in [machine.join("perl"), tree.join("usr/share/perl")] {
        for entry in fs::read_dir(&parent).with_context(|| format!("cannot read {}", parent.display()))? {
            folders.push(entry?.path());
        }
    }
    let mut command = disk_tool("usr/bin/perl");
    command.env("PERL5LIB", env::join_paths(folders).context("target is in a folder that cannot be in PERL5LIB")?);
    command.arg(tree.join(path));
    Ok(command)
}

/// A command for testpmd with the drivers of the peers' tree. They are named without their folder, so that the loader
/// finds them: DPDK itself takes no driver from a folder that others may write to.
pub fn testpmd() -> Command {
    let mut command = peer("usr/bin/dpdk-testpmd");
    for driver in ["bus_vdev", "mempool_ring", "net_virtio", "net_vhost"] {
        command.args(["-d", &format!("librte_{driver}.so.25")]);
    }
    command.args(["--no-pci", "--no-telemetry"]);
    command
}

/// The processors that this process may use, as a list: `0-3,6`.
pub fn processors() -> Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(list.context("no Cpus_allowed_list in /proc/self/status")?.trim().to_owned())
}

fn program_in(tree: &Path, path: &str) -> Command {
    plain_in(dying_with_us(&tree.join(LOADER)), tree, path)
}

thread_local! {
    /// The date that programs of the trees see. `None`: the date of today.
    static DATE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs `work`. The programs of the trees that this thread starts meanwhile see this date (`2031-05-06 07:08:09`, UTC), and clocks go on
/// from there. libfaketime and the tools for disk images have to be there.
///
/// # Errors
/// Those of `work`; or a program sees another date.
pub fn on_date<T>(date: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = DATE.replace(Some(date));
    let done = (|| {
        let day = date.split(' ').next().unwrap_or_default();
        let mut perl = disk_tool("usr/bin/perl");
        perl.args(["-e", r#"@t = gmtime; printf("%d-%02d-%02d", $t[5] + 1900, $t[4] + 1, $t[3])"#]);
        let seen = quietly(&mut perl, "perl")?;
        ensure!(seen == day, "a program sees the date {seen} instead of {day}");
        work()
    })();
    DATE.set(before);
    done
}

/// Gives a tree's loader its arguments.
fn plain_in(mut command: Command, tree: &Path, path: &str) -> Command {
    command.arg("--library-path").arg(library_path(tree));
    if let Some(date) = DATE.get() {
        command.arg("--preload").arg(paths::faketime()).env("FAKETIME", format!("@{date}")).env("TZ", "UTC");
    }
    if let Some(name) = Path::new(path).file_name() {
        command.arg("--argv0").arg(name);
    }
    command.arg(tree.join(path));
    command
}

/// A command whose process the kernel ends when this tool ends, for whatever reason, so that no emulator stays behind.
pub fn dying_with_us(program: &Path) -> Command {
    const SETPRIV: &str = "/usr/bin/setpriv";
    if !Path::new(SETPRIV).is_file() {
        return Command::new(program);
    }
    let mut command = Command::new(SETPRIV);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Runs a program silently and returns its output. If it fails, the error has the output.
pub fn quietly(command: &mut Command, what: &str) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {what}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{what} failed ({}):\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}

/// A command for the cargo that started this tool, in the repository.
pub fn plain_cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths::root());
    command
}

/// What `cargo metadata` says of the repository, without a network.
pub fn metadata(arguments: &[&str]) -> Result<Value> {
    let mut command = plain_cargo();
    command.args(["metadata", "--offline", "--format-version", "1"]).args(arguments);
    Ok(serde_json::from_str(&quietly(&mut command, "cargo metadata")?)?)
}

/// The name and version of each package that a package of ours needs to run on a target, with the features that it asks for itself:
/// what other members of the workspace ask for is not in it, other than in `cargo metadata`. Macros and what they need are in it.
pub fn tree(package: &str, target: &str) -> Result<BTreeSet<(String, String)>> {
    let mut command = plain_cargo();
    command.args(["tree", "--offline", "--locked", "--package", package, "--target", target]);
    command.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let packages = quietly(&mut command, "cargo tree")?;
    let package = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some((name.to_owned(), rest.split(' ').next()?.to_owned()))
    };
    Ok(packages.lines().filter_map(package).collect())
}

/// Runs cargo in the repository and shows its messages. `Ok(false)`: cargo reported a failure.
pub fn cargo<S: AsRef<OsStr>>(arguments: &[S], environment: &[(&str, &str)]) -> Result<bool> {
    run_cargo(plain_cargo(), arguments, environment)
}

/// The same, with the nightly compiler. Rustup has to have it.
pub fn nightly_cargo<S: AsRef<OsStr>>(arguments: &[S], environment: &[(&str, &str)]) -> Result<bool> {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]);
    run_cargo(command, arguments, environment)
}

fn run_cargo<S: AsRef<OsStr>>(mut command: Command, arguments: &[S], environment: &[(&str, &str)]) -> Result<bool> {
    let shown: Vec<_> = arguments.iter().map(|a| a.as_ref().to_string_lossy()).collect();
    ui::step("cargo", &shown.join(" "));
    // The variables that cargo has set for this tool must not reach the crates that it builds.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(environment.iter().copied()).current_dir(paths::root()).stdin(Stdio::null());
    Ok(command.status().context("cannot start cargo")?.success())
}
