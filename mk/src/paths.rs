//! The paths that the tool uses.

use std::env;
use std::path::{self, PathBuf};

/// The repository.
pub fn root() -> PathBuf {
    let mk = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    mk.parent().map_or_else(|| mk.clone(), PathBuf::from)
}

/// Everything built or fetched.
pub fn target() -> PathBuf {
    let named = env::var_os("CARGO_TARGET_DIR").map(|folder| path::absolute(&folder).unwrap_or_else(|_| folder.into()));
    named.unwrap_or_else(|| root().join("target"))
}

/// What was fetched.
pub fn deps() -> PathBuf {
    target().join("deps")
}

/// Debian packages unpacked over one another.
pub fn tree() -> PathBuf {
    deps().join("tree")
}

/// Packages of the peers, unpacked over one another.
pub fn peers() -> PathBuf {
    deps().join("peers")
}

/// Packages with tools for disk images, unpacked over one another.
pub fn disk_tools() -> PathBuf {
    deps().join("disk-tools")
}

/// nvme-cli and its libraries, unpacked over one another.
pub fn nvme_tools() -> PathBuf {
    deps().join("nvme-tools")
}

/// Packages with the programs that test guests' disks, unpacked over one another.
pub fn guest_tools() -> PathBuf {
    deps().join("guest-tools")
}

/// OpenSSH and its libraries, unpacked over one another.
pub fn ssh() -> PathBuf {
    deps().join("ssh")
}

/// tshark and its libraries, unpacked over one another.
pub fn tshark() -> PathBuf {
    deps().join("tshark")
}

/// dnsmasq, nginx and their libraries, unpacked over one another.
pub fn boot_server() -> PathBuf {
    deps().join("boot-server")
}

/// The library that shows programs another date.
pub fn faketime() -> PathBuf {
    deps().join("faketime/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
}

/// Packages of QEMU's storage daemon, unpacked over one another.
pub fn storage_daemon() -> PathBuf {
    deps().join("storage-daemon")
}

/// The guests' kernel package, unpacked.
pub fn guest_kernel() -> PathBuf {
    deps().join("kernel")
}

/// The package of the kernel that has drivers for real NICs, unpacked.
pub fn full_kernel() -> PathBuf {
    deps().join("kernel-full")
}

/// The package of Cloud Hypervisor's EDK2, unpacked.
pub fn cloudhv() -> PathBuf {
    deps().join("cloudhv")
}

/// Discs and logs of one run of the emulator.
pub fn runs() -> PathBuf {
    target().join("mk")
}
