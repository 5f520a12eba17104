//! Builds the root file system of the scenarios' Linux machines. It has busybox, the kernel modules for a virtio guest
//! or for a machine with an 82599, iperf3 and ethtool with their libraries, and `guest/init`, which does what the
//! kernel's command line says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use goblin::elf::Elf;

use crate::cpio::Archive;

/// A guest's modules, in the order of loading. Those that are built into the kernel are left out.
pub const GUEST_MODULES: [&str; 11] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "button",
    "evdev",
    "virtio_console",
];

/// Modules for interfaces with a VLAN tag. A machine loads them when an action makes such an interface.
const VLAN_MODULES: [&str; 5] = ["llc", "stp", "mrp", "garp", "8021q"];

/// Modules for an entropy device. A guest loads them when an action reads from the device.
const ENTROPY_MODULES: [&str; 2] = ["rng_core", "virtio_rng"];

/// Modules for a block device. A guest loads them when an action uses a disk.
const BLOCK_MODULES: [&str; 1] = ["virtio_blk"];

/// Modules for the file system of an EFI system partition. A guest loads them when an action reads a file from it.
const FAT_MODULES: [&str; 4] = ["nls_cp437", "nls_ascii", "fat", "vfat"];

/// Modules for a file system on it. Only the full image has them.
const FILE_SYSTEM_MODULES: [&str; 6] = ["crc32c_generic", "libcrc32c", "crc16", "mbcache", "jbd2", "ext4"];

/// Modules of the Linux that runs QEMU with KVM on a processor with SVM.
const KVM_MODULES: [&str; 10] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "irqbypass",
    "kvm",
    "kvm_amd",
];

/// What QEMU's PC loads from its folder of firmware, in the tree of packages.
const FIRMWARE: [&str; 3] =
    ["usr/share/seabios/bios-256k.bin", "usr/share/seabios/vgabios-stdvga.bin", "usr/share/qemu/kvmvapic.bin"];

/// The modules of a machine with an 82599.
const NIC_MODULES: [&str; 6] = ["mdio", "libphy", "mdio_devres", "dca", "xfrm_algo", "ixgbe"];

/// Modules that a kernel may lack: they are neither a file nor built in.
const OPTIONAL: [&str; 3] = ["virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_console"];

const INIT: &[u8] = include_bytes!("../guest/init");
const NIC_ACTIONS: &[u8] = include_bytes!("../guest/nic");
const PLAIN_ACTIONS: &[u8] = include_bytes!("../guest/plain");
const FIRST_LEVEL: &[u8] = include_bytes!("../guest/first-level");
const BOOT_SERVER_ACTIONS: &[u8] = include_bytes!("../guest/boot-server");
const DISK_ACTIONS: &[u8] = include_bytes!("../guest/disk");

/// The content of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Busybox and modules: for slow emulators, and for guests that only ping.
    Small,
    /// The same, and iperf3, udp-rr, ethtool, ext4 and the actions of `guest/nic` and `guest/disk`.
    Full,
    /// For a machine with an 82599: its driver, iperf3 and ethtool, and the actions of `guest/nic`.
    Nic,
}

/// Builds the image from a tree of unpacked Debian packages, an unpacked kernel package and programs of our own
/// that are linked statically.
pub fn build(tree: &Path, kernel: &Path, own: &[&Path], content: Content) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for path in ["bin", "dev", "lib", "lib/x86_64-linux-gnu", "lib64", "modules", "tmp", "usr", "usr/bin", "usr/sbin"] {
        archive.directory(path);
    }
    // The kernel opens the console for the first process before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &read(&tree.join("usr/bin/busybox"))?);
    archive.file("init", 0o755, INIT);
    let modules: &[_] = if content == Content::Nic { &NIC_MODULES } else { &GUEST_MODULES };
    add_modules(&mut archive, kernel, modules, "list")?;
    add_modules(&mut archive, kernel, &VLAN_MODULES, "vlan")?;
    if content != Content::Nic {
        add_modules(&mut archive, kernel, &ENTROPY_MODULES, "entropy")?;
        add_modules(&mut archive, kernel, &BLOCK_MODULES, "block")?;
        add_modules(&mut archive, kernel, &FAT_MODULES, "fat")?;
    }
    let programs: &[&str] = match content {
        Content::Small => &[],
        Content::Full | Content::Nic => &["usr/bin/iperf3", "usr/sbin/ethtool"],
    };
    add_programs(&mut archive, tree, programs)?;
    if content != Content::Small {
        archive.file("actions", 0o644, NIC_ACTIONS);
        for program in own {
            let name = program.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
            archive.file(&format!("usr/bin/{name}"), 0o755, &read(program)?);
        }
    }
    if content == Content::Full {
        add_modules(&mut archive, kernel, &FILE_SYSTEM_MODULES, "file-system")?;
        archive.file("disk-actions", 0o644, DISK_ACTIONS);
    }
    Ok(archive.finish())
}

/// Builds an image for a machine of plain Linux, which is loaded behind another one: nvme-cli and its libraries, from a tree of
/// unpacked Debian packages, `sidecore-doctor` and the module that it needs, from an unpacked kernel package, and the actions of
/// `guest/plain`.
pub fn plain(tree: &Path, kernel: &Path, doctor: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for path in ["lib", "lib/x86_64-linux-gnu", "lib64", "modules", "usr", "usr/bin", "usr/sbin"] {
        archive.directory(path);
    }
    add_programs(&mut archive, tree, &["usr/sbin/nvme"])?;
    add_modules(&mut archive, kernel, &["msr"], "msr")?;
    archive.file("usr/bin/sidecore-doctor", 0o755, &read(doctor)?);
    archive.file("actions", 0o644, PLAIN_ACTIONS);
    Ok(archive.finish())
}

/// Builds an image for the Linux in which QEMU runs with KVM (the platform `nested`), from a tree of unpacked Debian packages and
/// an unpacked kernel package: QEMU, its libraries, SeaBIOS and `guest/first-level`.
///
/// # Errors
/// A file is missing.
pub fn first_level(tree: &Path, kernel: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    let folders =
        ["bin", "dev", "firmware", "lib", "lib/x86_64-linux-gnu", "lib64", "modules", "tmp", "usr", "usr/bin"];
    folders.into_iter().for_each(|path| archive.directory(path));
    archive.character_device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &read(&tree.join("usr/bin/busybox"))?);
    archive.file("init", 0o755, FIRST_LEVEL);
    add_modules(&mut archive, kernel, &KVM_MODULES, "list")?;
    add_programs(&mut archive, tree, &["usr/bin/qemu-system-x86_64"])?;
    for path in FIRMWARE {
        let name = path.rsplit('/').next().unwrap_or(path);
        archive.file(&format!("firmware/{name}"), 0o644, &read(&tree.join(path))?);
    }
    Ok(archive.finish())
}

/// Builds an image for a machine that others boot from by network, which is loaded behind another one: dnsmasq, nginx and their libraries,
/// from a tree of unpacked Debian packages, these files (their paths, without a slash in front, and where they are), and the actions of
/// `guest/boot-server`.
///
/// # Errors
/// A file is missing.
pub fn boot_server(tree: &Path, files: &[(&str, &Path)]) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for path in ["lib", "lib/x86_64-linux-gnu", "lib64", "usr", "usr/bin", "usr/sbin"] {
        archive.directory(path);
    }
    add_programs(&mut archive, tree, &["usr/sbin/dnsmasq", "usr/sbin/nginx"])?;
    archive.file("actions", 0o644, BOOT_SERVER_ACTIONS);
    archive.folders_of(files.iter().map(|(path, _)| *path));
    for (path, source) in files {
        archive.file(path, 0o644, &read(source)?);
    }
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}; `cargo mk fetch` brings it", path.display()))
}

/// Adds modules, and a file `list_name` with their file names in order.
///
/// # Errors
/// The kernel package lacks a module, or cannot be read.
pub fn add_modules(archive: &mut Archive, kernel: &Path, modules: &[&str], list_name: &str) -> Result<()> {
    let root = module_root(kernel)?;
    let built_in =
        fs::read_to_string(root.join("modules.builtin")).context("the kernel package has no modules.builtin")?;
    let order = fs::read_to_string(root.join("modules.order")).context("the kernel package has no modules.order")?;
    let mut list = String::new();
    for &name in modules {
        if find(&built_in, name).is_some() {
            continue;
        }
        let Some(path) = find(&order, name) else {
            if OPTIONAL.contains(&name) {
                continue;
            }
            bail!("the guest kernel in {} has no {name}, neither as a module nor built in", kernel.display());
        };
        archive.file(&format!("modules/{name}.ko"), 0o644, &read_module(&root.join(path))?);
        list.push_str(name);
        list.push_str(".ko\n");
    }
    archive.file(&format!("modules/{list_name}"), 0o644, list.as_bytes());
    Ok(())
}

/// `lib/modules/VERSION` of an unpacked kernel package; older releases have it outside `usr`.
fn module_root(kernel: &Path) -> Result<PathBuf> {
    for parent in ["usr/lib/modules", "lib/modules"] {
        if let Ok(mut versions) = fs::read_dir(kernel.join(parent))
            && let Some(version) = versions.next()
        {
            return Ok(version?.path());
        }
    }
    bail!("no kernel modules under {}; `cargo mk fetch` brings them", kernel.display())
}

/// Finds the line of a modules file that names a module. File names may have `-` where the module's name has `_`.
fn find<'a>(lines: &'a str, name: &str) -> Option<&'a str> {
    lines.lines().find(|line| {
        let file = line.rsplit('/').next().unwrap_or(line);
        file.split('.').next().is_some_and(|stem| stem.replace('-', "_") == name)
    })
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.is_file() {
        return read(path);
    }
    let packed = read(&PathBuf::from(format!("{}.xz", path.display())))?;
    let mut module = Vec::new();
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut module)
        .map_err(|error| anyhow::anyhow!("cannot unpack {}.xz: {error:?}", path.display()))?;
    Ok(module)
}

/// Adds programs of the tree, their libraries, the libraries of these, and the loader.
///
/// # Errors
/// A file is missing, or is no ELF file.
pub fn add_programs(archive: &mut Archive, tree: &Path, paths: &[&str]) -> Result<()> {
    for file in programs(tree, paths)? {
        archive.file(&file.place, file.mode, &read(&file.source)?);
    }
    Ok(())
}

/// A file that a program needs.
#[derive(Debug)]
pub struct File {
    /// Its path in the guest, without a slash in front.
    pub place: String,
    /// Its mode.
    pub mode: u32,
    /// Where it is in the tree.
    pub source: PathBuf,
}

/// Folders of the tree with libraries. All libraries are in one folder in a guest.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];

/// Lists these programs of a tree, their libraries, the libraries of these, and the loader.
///
/// # Errors
/// A file is missing, or is no ELF file.
pub fn programs(tree: &Path, paths: &[&str]) -> Result<Vec<File>> {
    let (mut files, mut missing) = (Vec::new(), Vec::new());
    for path in paths {
        let source = tree.join(path);
        missing.extend(needed(&read(&source)?, path)?);
        files.push(File { place: (*path).to_owned(), mode: 0o755, source });
    }
    if paths.is_empty() {
        return Ok(files);
    }
    // The C library loads this one when a thread is cancelled. No program names it.
    missing.push("libgcc_s.so.1".to_owned());
    let mut done = BTreeSet::new();
    while let Some(name) = missing.pop() {
        if name.starts_with("ld-linux") || !done.insert(name.clone()) {
            continue;
        }
        let [usual, other] = LIBRARIES.map(|folder| tree.join(folder).join(&name));
        let source = if usual.is_file() || !other.is_file() { usual } else { other };
        missing.extend(needed(&read(&source)?, &name)?);
        files.push(File { place: format!("lib/x86_64-linux-gnu/{name}"), mode: 0o644, source });
    }
    let source = tree.join("usr/lib64/ld-linux-x86-64.so.2");
    files.push(File { place: "lib64/ld-linux-x86-64.so.2".to_owned(), mode: 0o755, source });
    Ok(files)
}

fn needed(bytes: &[u8], name: &str) -> Result<Vec<String>> {
    let elf = Elf::parse(bytes).with_context(|| format!("{name} is not an ELF file"))?;
    Ok(elf.libraries.iter().map(|library| (*library).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_by_its_name_and_not_by_a_part_of_it() {
        let order = "kernel/drivers/net/virtio_net.ko\nkernel/a/virtio-rng.ko.xz\n";
        assert_eq!(find(order, "virtio_net"), Some("kernel/drivers/net/virtio_net.ko"));
        assert_eq!(find(order, "virtio_rng"), Some("kernel/a/virtio-rng.ko.xz"));
        assert_eq!(find(order, "virtio"), None);
    }

    #[test]
    fn the_init_script_knows_every_action_it_documents() {
        let script = std::str::from_utf8(INIT).unwrap();
        for action in [
            "ping)", "beat)", "iperf)", "serve)", "fetch)", "smp)", "button)", "shell)", "ready)", "udp)", "random)",
            "lines)", "port)",
        ] {
            assert!(script.contains(action), "{action}");
        }
    }

    #[test]
    fn each_action_of_a_file_beside_init_is_one_of_init_and_only_there_for_it() {
        let init = std::str::from_utf8(INIT).unwrap();
        let labels: Vec<&str> = init
            .lines()
            .filter_map(|l| l.strip_prefix("        ")?.split_once(')'))
            .flat_map(|l| l.0.split('|').map(str::trim))
            .collect();
        for (file, least) in [(NIC_ACTIONS, 6), (DISK_ACTIONS, 5), (BOOT_SERVER_ACTIONS, 2)] {
            let file = std::str::from_utf8(file).unwrap();
            let actions: Vec<String> = file
                .lines()
                .filter_map(|l| Some(l.strip_prefix("do_")?.split_once("()")?.0.replace('_', "-")))
                .collect();
            assert!(actions.len() >= least);
            for action in actions {
                assert_eq!(labels.iter().filter(|label| **label == action).count(), 1, "{action}");
            }
        }
    }
}
