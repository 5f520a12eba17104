//! Fetches emulators, GRUB, the guests' kernel and tools by package name, without touching the host.
//!
//! A private apt (its own state, cache and configuration, all under `target/deps/apt`) resolves and downloads from
//! Debian; `dpkg -x` unpacks into `target/deps/tree`. Neither needs root, and nothing is installed.

mod apt;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::tools::quietly;
use crate::ui::Progress;
use crate::{paths, tools, ui};

/// What is fetched, with everything it depends on.
const PACKAGES: [&str; 13] = [
    "qemu-system-x86",
    "bochs",
    "bochs-term",
    "bochsbios",
    "vgabios",
    "grub-common",
    "grub-pc-bin",
    "grub-efi-amd64-bin",
    "xorriso",
    "mtools",
    "ovmf",
    "busybox-static",
    "iperf3",
];

/// The package whose dependency is the current guest kernel. Only that one package of it is fetched.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Changed when the same list has to be unpacked in another way.
const LAYOUT: u32 = 1;

/// Makes sure that everything is there; instant if it is.
pub fn ensure(again: bool) -> Result<()> {
    let wanted = stamp();
    let stamp_file = paths::deps().join("stamp");
    if !again && fs::read_to_string(&stamp_file).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!("the emulators come as Debian's amd64 packages: use an x86_64 Linux machine");
    }
    ui::step("fetch", "emulators, GRUB and the guests' kernel into target/deps (about 150 MB, once)");
    let apt = apt::Apt::prepare(&paths::deps().join("apt"))?;
    apt.update()?;
    let kernel = apt.dependency(KERNEL, "linux-image-")?;
    let packages = apt.download(&PACKAGES)?;
    let kernel_package = apt.download_one(&kernel)?;

    // Unpacked beside its place and moved there when complete: an interrupted run leaves no half tree.
    let fresh = paths::deps().join("unpacking");
    remove(&fresh)?;
    unpack(&packages, &fresh.join("tree"))?;
    unpack(&[kernel_package], &fresh.join("kernel"))?;
    remove(&stamp_file)?;
    for (from, to) in [("tree", paths::tree()), ("kernel", paths::guest_kernel())] {
        remove(&to)?;
        fs::rename(fresh.join(from), &to)?;
    }
    remove(&fresh)?;
    apt.tidy()?;
    tools::write_wrappers()?;
    fs::write(&stamp_file, wanted)?;
    ui::step("fetch", &format!("done: {} packages, guest kernel {kernel}", packages.len() + 1));
    Ok(())
}

/// Makes sure that the compiler can build for the bare machine.
pub fn ensure_rust_target() -> Result<()> {
    const TARGET: &str = "x86_64-unknown-none";
    let sysroot = quietly(Command::new("rustc").args(["--print", "sysroot"]).current_dir(paths::root()), "rustc")?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib").is_dir() {
        return Ok(());
    }
    ui::step("rustup", &format!("target add {TARGET}"));
    let added = Command::new("rustup").args(["target", "add", TARGET]).current_dir(paths::root()).status();
    if !added.is_ok_and(|status| status.success()) {
        bail!("the Rust target {TARGET} is missing and could not be added; run `rustup target add {TARGET}` here");
    }
    Ok(())
}

fn stamp() -> String {
    format!("layout {LAYOUT}\n{}\n{}\n{KERNEL}\n", apt::SUITES.join(" "), PACKAGES.join(" "))
}

fn remove(path: &Path) -> Result<()> {
    let result = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Unpacks packages over one another, two at a time.
fn unpack(packages: &[PathBuf], to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    // It holds the links /lib -> usr/lib and the like, which others unpack through.
    let (base, rest): (Vec<_>, Vec<_>) =
        packages.iter().partition(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("base-files_")));
    let one = |package: &Path| quietly(Command::new("dpkg").arg("-x").arg(package).arg(to), "dpkg -x").map(drop);
    base.iter().try_for_each(|package| one(package))?;
    let (left, right) = rest.split_at(rest.len() / 2);
    thread::scope(|scope| {
        let other = scope.spawn(|| right.iter().try_for_each(|package| one(package)));
        let mut progress = Progress::new("fetch");
        for (index, package) in left.iter().enumerate() {
            one(package)?;
            progress.at(|| format!("unpacking, {} of {} packages", 2 * index, rest.len()));
        }
        other.join().unwrap_or_else(|_| bail!("unpacking panicked"))
    })
}
