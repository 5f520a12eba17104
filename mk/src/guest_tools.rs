//! Builds the disk with the programs that test guests' disks: fio, mke2fs, e2fsck and blkdiscard, with their libraries.
//!
//! Debian's fio is linked with the libraries of Ceph and of RDMA, and they with 100 others. In an initramfs, each guest
//! would have all that in its memory. On a disk over a boot module it is in memory once.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use scenarios::initramfs;

use crate::{fetch, paths, tools};

/// The programs.
const PROGRAMS: [&str; 4] = ["usr/bin/fio", "usr/sbin/mke2fs", "usr/sbin/e2fsck", "usr/sbin/blkdiscard"];
/// Folders on which a guest mounts something before it starts a program.
const FOLDERS: [&str; 4] = ["dev", "proc", "sys", "tmp"];
/// KiB of the file system beyond what the files need: its own tables.
const TABLES_KIB: u64 = 4 << 10;

/// Builds the disk: an ext2 file system without a partition table. Returns its path.
pub fn image() -> Result<PathBuf> {
    fetch::ensure_guest_tools()?;
    let (tree, work) = (paths::guest_tools(), paths::runs().join("guest-tools"));
    let place = work.join("disk");
    let files = initramfs::programs(&tree, &PROGRAMS)?;
    let root = work.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let mut kib = TABLES_KIB;
    for folder in FOLDERS.into_iter().chain(["etc"]) {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::copy(tree.join("etc/mke2fs.conf"), root.join("etc/mke2fs.conf")).context("no mke2fs.conf")?;
    for file in files {
        let to = root.join(&file.place);
        fs::create_dir_all(to.parent().unwrap_or(&root))?;
        kib +=
            fs::copy(&file.source, &to).with_context(|| format!("cannot copy {}", file.source.display()))? / 1024 + 4;
        fs::set_permissions(&to, fs::Permissions::from_mode(file.mode))?;
    }
    if place.exists() {
        fs::remove_file(&place)?;
    }
    let mut mke2fs = tools::guest_tool("usr/sbin/mke2fs");
    mke2fs.env("MKE2FS_CONFIG", tree.join("etc/mke2fs.conf"));
    mke2fs
        .args(["-q", "-F", "-t", "ext2", "-b", "4096", "-m", "0", "-N", "512", "-E", "root_owner=0:0", "-d"])
        .arg(&root);
    mke2fs.arg(&place).arg(format!("{kib}k"));
    tools::quietly(&mut mke2fs, "mke2fs")?;
    Ok(place)
}
