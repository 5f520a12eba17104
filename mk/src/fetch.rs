//! Fetches emulators, GRUB, the guests' kernel and tools by package name, without touching the host.
//!
//! A private apt (its own state, cache and configuration, all under `target/deps/apt`) resolves and downloads from
//! Debian; `dpkg -x` unpacks into `target/deps/tree`. Neither needs root, and nothing is installed.

mod apt;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};

use crate::tools::quietly;
use crate::ui::Progress;
use crate::{paths, ui};

/// Packages to fetch, with all their dependencies.
const PACKAGES: &[&str] = &[
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
    "ethtool",
    "valgrind",
];

/// Packages that depend on a current kernel's package, and the folder for it: the guests' kernel, and the one with
/// drivers for real NICs. Only the kernel's package is fetched, without its other dependencies.
const KERNELS: [(&str, &str); 2] = [("linux-image-cloud-amd64", "kernel"), ("linux-image-amd64", "kernel-full")];

/// Packages of the other switches in the contest, and of DPDK's program that sends frames. They are fetched when first
/// needed.
const PEERS: &[&str] = &["dpdk", "dpdk-dev", "librte-net-virtio25", "librte-net-vhost25", "openvswitch-switch-dpdk"];

/// Packages with the tools that build and check disk images. libarchive lets mke2fs read archives.
const DISK_TOOLS: &[&str] = &["mmdebstrap", "e2fsprogs", "libarchive13t64", "dosfstools", "gdisk"];

/// Packages with the tools that show NVMe disks from Linux.
const NVME_TOOLS: &[&str] = &["nvme-cli"];

/// Packages with the programs that test guests' disks.
const GUEST_TOOLS: &[&str] = &["fio", "e2fsprogs", "util-linux"];

/// Packages with the management guest's ssh, and the client that tests it.
const SSH: &[&str] = &["openssh-server", "openssh-client"];

/// The package with the program that reads captured frames.
const TSHARK: &[&str] = &["tshark"];

/// Packages with the DHCP and TFTP server, and the HTTP server, that machines boot from in scenarios.
const BOOT_SERVER: &[&str] = &["dnsmasq-base", "nginx"];

/// The package with the library that shows programs another date.
const FAKETIME: &[&str] = &["libfaketime"];

/// The package with the program that reads metrics. It is fetched alone: the program needs the C library only.
const PROMETHEUS: &str = "prometheus";

/// Packages with what judges the management guest: Prometheus' check of metrics, a strict reader of OpenMetrics, and the audit of an ssh
/// server. Two of them are for Python, which the host has to have. They are fetched alone.
const OPERATOR_JUDGES: &[&str] = &["promtool", "python3-prometheus-client", "python3-decorator", "ssh-audit"];

/// Perfetto's Python package, which has its published schema, and what decodes by it. They are fetched by pip when first needed.
const PERFETTO: [&str; 2] = ["perfetto==0.59.1", "protobuf==7.36.2"];

/// Packages with the storage daemon that is measured beside our disks. They are fetched when first needed.
const STORAGE_DAEMON: &[&str] = &["qemu-utils", "qemu-block-extra"];

/// Version of the way in which packages are unpacked. A change makes everything be unpacked again.
const LAYOUT: u32 = 1;

/// Makes sure that everything is there. Fetches only if something is missing, or with `again`.
pub fn ensure(again: bool) -> Result<()> {
    let wanted = stamp();
    let stamp_file = paths::deps().join("stamp");
    if !again && fs::read_to_string(&stamp_file).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!("the emulators come as Debian's amd64 packages: use an x86_64 Linux machine");
    }
    ui::step("fetch", "emulators, GRUB and the guests' kernels into target/deps (about 260 MB, once)");
    let apt = apt::Apt::prepare(&paths::deps().join("apt"))?;
    apt.update()?;
    let packages = apt.download(PACKAGES)?;

    // Packages are unpacked beside the tree, which is moved into place when complete. An interrupted run leaves no half
    // tree.
    let fresh = paths::deps().join("unpacking");
    remove(&fresh)?;
    unpack(&packages, &fresh.join("tree"))?;
    for (package, folder) in KERNELS {
        let kernel = apt.dependency(package, "linux-image-")?;
        unpack(&[apt.download_one(&kernel)?], &fresh.join(folder))?;
    }
    remove(&stamp_file)?;
    for folder in ["tree"].into_iter().chain(KERNELS.map(|(_, folder)| folder)) {
        let place = paths::deps().join(folder);
        remove(&place)?;
        fs::rename(fresh.join(folder), &place)?;
    }
    remove(&fresh)?;
    apt.tidy()?;
    fs::write(&stamp_file, wanted)?;
    ui::step("fetch", &format!("done: {} packages", packages.len() + KERNELS.len()));
    Ok(())
}

/// Makes sure that the peers are there, in a tree of their own. Fetches only if something is missing.
pub fn ensure_peers() -> Result<()> {
    ensure_apart("peers", PEERS, "DPDK and Open vSwitch into target/deps/peers (about 80 MB, once)")
}

/// Makes sure that QEMU's storage daemon is there, in a tree of its own. Fetches only if something is missing.
pub fn ensure_storage_daemon() -> Result<()> {
    ensure_apart("storage-daemon", STORAGE_DAEMON, "QEMU's storage daemon into target/deps/storage-daemon (once)")
}

/// Makes sure that the tools for disk images are there, in a tree of their own. Fetches only if something is missing.
pub fn ensure_disk_tools() -> Result<()> {
    ensure_apart("disk-tools", DISK_TOOLS, "tools for disk images into target/deps/disk-tools (about 37 MB, once)")
}

/// Makes sure that nvme-cli is there, in a tree of its own. Fetches it only if it is missing.
pub fn ensure_nvme_tools() -> Result<()> {
    ensure_apart("nvme-tools", NVME_TOOLS, "nvme-cli into target/deps/nvme-tools (about 20 MB, once)")
}

/// Makes sure that the programs that test guests' disks are there, in a tree of their own. Fetches only if something is
/// missing.
pub fn ensure_guest_tools() -> Result<()> {
    ensure_apart("guest-tools", GUEST_TOOLS, "fio and e2fsprogs into target/deps/guest-tools (about 60 MB, once)")
}

/// Makes sure that OpenSSH is there, in a tree of its own. Fetches it only if it is missing.
pub fn ensure_ssh() -> Result<()> {
    ensure_apart("ssh", SSH, "OpenSSH into target/deps/ssh (about 40 MB, once)")
}

/// Makes sure that tshark is there, in a tree of its own. Fetches it only if it is missing.
pub fn ensure_tshark() -> Result<()> {
    ensure_apart("tshark", TSHARK, "tshark into target/deps/tshark (about 60 MB, once)")
}

/// Makes sure that dnsmasq and nginx are there, in a tree of their own. Fetches only if something is missing.
pub fn ensure_boot_server() -> Result<()> {
    ensure_apart("boot-server", BOOT_SERVER, "dnsmasq and nginx into target/deps/boot-server (about 10 MB, once)")
}

/// Makes sure that libfaketime is there, in a tree of its own. Fetches it only if it is missing.
pub fn ensure_faketime() -> Result<()> {
    ensure_apart("faketime", FAKETIME, "libfaketime into target/deps/faketime (about 10 MB, once)")
}

/// Makes sure that Prometheus is there. Fetches it only if it is missing. Returns its path.
pub fn prometheus() -> Result<PathBuf> {
    const WHAT: &str = "Prometheus into target/deps/prometheus (about 30 MB, once)";
    Ok(apart("prometheus", &[PROMETHEUS], WHAT, alone)?.join("usr/bin/prometheus"))
}

/// Makes sure that the judges of the management guest are there. Fetches them only if they are missing. Returns their folder.
pub fn operator_judges() -> Result<PathBuf> {
    const WHAT: &str =
        "promtool, ssh-audit and a reader of OpenMetrics into target/deps/operator-judges (about 16 MB, once)";
    apart("operator-judges", OPERATOR_JUDGES, WHAT, alone)
}

/// Makes sure that Perfetto's schema is there. Fetches it only if it is missing. Returns the folder for Python's path. The host
/// has to have Python with pip.
pub fn perfetto() -> Result<PathBuf> {
    let (stamp_file, place) = (paths::deps().join("stamp-perfetto"), paths::deps().join("perfetto"));
    let wanted = PERFETTO.join("\n");
    if fs::read_to_string(&stamp_file).is_ok_and(|present| present == wanted) {
        return Ok(place);
    }
    ui::step("fetch", "Perfetto's Python package into target/deps/perfetto (about 7 MB, once)");
    let fresh = paths::deps().join("unpacking-perfetto");
    remove(&fresh)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]);
    quietly(pip.arg(&fresh).args(PERFETTO), "pip (Perfetto's Python package)")?;
    remove(&stamp_file)?;
    remove(&place)?;
    fs::rename(&fresh, &place)?;
    fs::write(&stamp_file, wanted)?;
    Ok(place)
}

/// Makes sure that packages are there with all their dependencies, in a folder of their own.
fn ensure_apart(folder: &str, packages: &[&str], what: &str) -> Result<()> {
    apart(folder, packages, what, |apt, packages| apt.download(packages)).map(drop)
}

/// Downloads packages without their dependencies.
fn alone(apt: &apt::Apt, packages: &[&str]) -> Result<Vec<PathBuf>> {
    packages.iter().map(|package| apt.download_one(package)).collect()
}

/// Makes sure that what `download` brings of these packages is in a folder of its own. Returns the folder. Fetches only if something is missing.
fn apart(
    folder: &str,
    packages: &[&str],
    what: &str,
    download: impl Fn(&apt::Apt, &[&str]) -> Result<Vec<PathBuf>>,
) -> Result<PathBuf> {
    let wanted = format!("layout {LAYOUT}\n{}\n{}\n", apt::SUITES.join(" "), packages.join(" "));
    let (stamp_file, place) = (paths::deps().join(format!("stamp-{folder}")), paths::deps().join(folder));
    if fs::read_to_string(&stamp_file).is_ok_and(|present| present == wanted) {
        return Ok(place);
    }
    ui::step("fetch", what);
    let apt = apt::Apt::prepare(&paths::deps().join("apt"))?;
    apt.update()?;
    let packages = download(&apt, packages)?;
    let fresh = paths::deps().join("unpacking");
    remove(&fresh)?;
    unpack(&packages, &fresh)?;
    remove(&stamp_file)?;
    remove(&place)?;
    fs::rename(&fresh, &place)?;
    apt.tidy()?;
    fs::write(&stamp_file, wanted)?;
    ui::step("fetch", &format!("done: {} packages", packages.len()));
    Ok(place)
}

/// The archive that packages come from: what another tool needs to use it.
pub struct Archive {
    /// The line of a `sources.list`, with the keys that the archive is signed with.
    pub source: String,
    /// Lines of apt's configuration: the host's proxies.
    pub network: Vec<String>,
}

/// Says where packages of Debian's stable suite come from.
pub fn archive() -> Result<Archive> {
    let apt = apt::Apt::prepare(&paths::deps().join("apt"))?;
    Ok(Archive { source: apt.source(apt::SUITES[0])?, network: apt::host_network() })
}

/// Returns the path of rust-hypervisor-firmware: the file that SIDECORE_RHF names. No package registry has it.
pub fn rhf() -> Result<PathBuf> {
    let named =
        env::var_os("SIDECORE_RHF").context("SIDECORE_RHF names no file; tests/README.md says how to build it")?;
    let path = PathBuf::from(named);
    ensure!(path.is_file(), "SIDECORE_RHF names {}, which is no file", path.display());
    Ok(path)
}

/// Returns the path of Cloud Hypervisor's EDK2. It is the file that SIDECORE_CLOUDHV names, or else Debian's package, which
/// is fetched if it is missing.
pub fn cloudhv() -> Result<PathBuf> {
    const FILE: &str = "usr/share/cloudhv-efi-x86-64/CLOUDHV.fd";
    if let Some(named) = env::var_os("SIDECORE_CLOUDHV") {
        let path = PathBuf::from(named);
        if !path.is_file() {
            bail!("SIDECORE_CLOUDHV names {}, which is no file", path.display());
        }
        return Ok(path);
    }
    let place = paths::cloudhv();
    if place.join(FILE).is_file() {
        return Ok(place.join(FILE));
    }
    ui::step("fetch", "Cloud Hypervisor's EDK2 into target/deps/cloudhv (about 12 MB, once)");
    // Its suite moves on by itself, so it has an apt of its own, beside that of the other packages.
    let apt = apt::Apt::prepare_for(&paths::deps().join("apt-firmware"), &[apt::FIRMWARE_SUITE])?;
    apt.update_even_if_expired()?;
    let fresh = paths::deps().join("unpacking-cloudhv");
    remove(&fresh)?;
    unpack(&[apt.download_one("cloudhv-efi-x86-64")?], &fresh)?;
    remove(&place)?;
    fs::rename(&fresh, &place)?;
    apt.tidy()?;
    Ok(place.join(FILE))
}

/// Makes sure that the compiler can build for a target.
pub fn ensure_rust_target(target: &str) -> Result<()> {
    let sysroot = quietly(Command::new("rustc").args(["--print", "sysroot"]).current_dir(paths::root()), "rustc")?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").is_dir() {
        return Ok(());
    }
    ui::step("rustup", &format!("target add {target}"));
    let added = Command::new("rustup").args(["target", "add", target]).current_dir(paths::root()).status();
    if !added.is_ok_and(|status| status.success()) {
        bail!("the Rust target {target} is missing and could not be added; run `rustup target add {target}` here");
    }
    Ok(())
}

fn stamp() -> String {
    let kernels = KERNELS.map(|(package, _)| package).join(" ");
    format!("layout {LAYOUT}\n{}\n{}\n{kernels}\n", apt::SUITES.join(" "), PACKAGES.join(" "))
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
    // This package comes first: it has links such as /lib -> usr/lib, through which others unpack.
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
