//! Builds the management guest's RAM disk: Debian's kernel modules, busybox and OpenSSH, and `sidecore-agent`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use scenarios::cpio::Archive;
use scenarios::initramfs::{self, GUEST_MODULES};
use scenarios::setup::Content;

use crate::agent::SSHD_OPERATOR;
use crate::{fetch, paths, tools, ui};

/// Programs of OpenSSH. sshd starts the two beside it for each connection.
const PROGRAMS: [&str; 4] =
    ["usr/sbin/sshd", "usr/lib/openssh/sshd-session", "usr/lib/openssh/sshd-auth", "usr/bin/ssh-keygen"];

const INIT: &[u8] = include_bytes!("../../tools/agent/guest/init");
const UDHCPC: &[u8] = include_bytes!("../../tools/agent/guest/udhcpc.script");
const SSHD: &[u8] = include_bytes!("../../tools/agent/guest/sshd_config");

/// `agent` owns the broker and the metrics, `operator` is who logs in. Both have the group of the broker's socket.
const PASSWD: &str = "root:*:0:0:root:/root:/bin/sh\n\
                      sshd:*:100:65534:sshd:/run/sshd:/bin/false\n\
                      agent:*:101:1000:agent:/run/sidecore:/bin/false\n\
                      operator:*:1000:1000:operator:/tmp:/bin/sh\n\
                      nobody:*:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:*:0:\noperator:*:1000:\nnogroup:*:65534:\n";

/// Builds the RAM disk of [`Content::Management`] at `place`. `agent`: the program, linked statically.
pub fn build(keys: &str, host_key: Option<&str>, agent: &Path, place: &Path) -> Result<()> {
    fetch::ensure(false)?;
    fetch::ensure_ssh()?;
    let (tree, ssh) = (paths::tree(), paths::ssh());
    let mut archive = Archive::new();
    for path in [
        "bin",
        "dev",
        "etc",
        "etc/sidecore",
        "etc/ssh",
        "lib",
        "lib/x86_64-linux-gnu",
        "lib64",
        "modules",
        "usr",
        "usr/bin",
        "usr/lib",
        "usr/lib/openssh",
        "usr/sbin",
    ] {
        archive.directory(path);
    }
    // The kernel opens the console for the first process before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    archive.file("bin/busybox", 0o755, &read(&tree.join("usr/bin/busybox"))?);
    archive.file("init", 0o755, INIT);
    archive.file("etc/udhcpc.script", 0o755, UDHCPC);
    archive.file("etc/ssh/sshd_config", 0o644, &[SSHD, SSHD_OPERATOR.as_bytes()].concat());
    archive.file("etc/passwd", 0o644, PASSWD.as_bytes());
    archive.file("etc/group", 0o644, GROUP.as_bytes());
    archive.file("etc/sidecore/keys", 0o600, keys.as_bytes());
    if let Some(key) = host_key {
        archive.file("etc/sidecore/host_key", 0o600, key.as_bytes());
    }
    initramfs::add_modules(&mut archive, &paths::guest_kernel(), &GUEST_MODULES, "list")?;
    initramfs::add_programs(&mut archive, &ssh, &PROGRAMS)?;
    archive.file("usr/bin/sidecore-agent", 0o755, &read(agent)?);
    fs::write(place, archive.finish()).with_context(|| format!("cannot write {}", place.display()))
}

/// The configuration of a machine that has a management guest: what `cargo mk image --management` puts before the guests.
pub const ENTRIES: &str = "\
# The guest by which the machine is managed: ssh operator@ITS-ADDRESS. See tools/agent/README.md.
[management]
guest = \"management\"

[[port]]
device = \"first\"

";

/// Its guest. The address comes by DHCP.
pub const GUEST: &str = "\
[[guest]]
name = \"management\"
memory = \"192M\"
kernel = \"vmlinuz\"
initrd = \"management\"
cmdline = \"console=ttyS0 quiet loglevel=3 panic=-1\"

[[guest.net]]
mac = \"52:54:00:00:00:77\"

[[guest.entropy]]

";

/// Reads the files that `cargo mk image --management` names.
pub fn content(keys: Option<&Path>, host_key: Option<&Path>) -> Result<Content> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let keys = keys.context("--management needs --keys FILE: the public keys that may log in, one a line")?;
    Ok(Content::Management { keys: read(keys)?, host_key: host_key.map(read).transpose()? })
}

/// Makes a host key in the file `path` and prints its fingerprint.
pub fn new_host_key(path: &Path) -> Result<()> {
    fetch::ensure_ssh()?;
    let keygen = || tools::ssh_tool("usr/bin/ssh-keygen");
    tools::quietly(keygen().args(["-q", "-t", "ed25519", "-N", "", "-C", "sidecore", "-f"]).arg(path), "ssh-keygen")?;
    let fingerprint = tools::quietly(keygen().arg("-lf").arg(path), "ssh-keygen")?;
    ui::step("host key", &format!("{}: {}", path.display(), fingerprint.trim()));
    Ok(())
}
