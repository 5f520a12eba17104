//! A small disk image that boots with firmware: an ESP with GRUB, which EDK2 starts; an entry of the Boot Loader
//! Specification, which rust-hypervisor-firmware reads by itself; a kernel and its initramfs. It has no root file system. It
//! is small enough to be a boot module.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gpt_disk_types::{BlockSize, GptPartitionType};

use super::fat::Entry;
use super::seed::{self, Seed};
use super::{esp, fat, gpt};
use crate::fetch;

/// Bytes of the ESP: room for Debian's cloud kernel and the small initramfs.
const ESP: u64 = 24 << 20;
/// Bytes of the disk: the ESP, and the partition tables before and after it.
const DISK: u64 = ESP + 2 * gpt::ALIGNMENT;

/// What such a disk boots.
pub struct Small<'a> {
    /// The kernel.
    pub kernel: &'a Path,
    /// Its initramfs.
    pub initrd: &'a Path,
    /// Its command line. GRUB reads it as words, so it has none of GRUB's special characters.
    pub cmdline: &'a str,
    /// The content of the file `text` beside them.
    pub text: &'a str,
}

/// Makes the disk image `place`. `work`: a folder for what is needed meanwhile.
pub fn small(content: &Small<'_>, work: &Path, place: &Path) -> Result<()> {
    fetch::ensure_disk_tools()?;
    fs::create_dir_all(work)?;
    let made = |name: &str, content: &str| -> Result<PathBuf> {
        let path = work.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let menu =
        format!("set timeout=0\nmenuentry Linux {{\n    linux /vmlinuz {}\n    initrd /initrd\n}}\n", content.cmdline);
    let bls = format!("title Linux\nlinux /vmlinuz\ninitrd /initrd\noptions {}\n", content.cmdline);
    let entry = |path: &str, source| Entry { path: path.to_owned(), source };
    let files = [
        entry("EFI/BOOT/BOOTX64.EFI", esp::grub(work)?),
        entry("EFI/BOOT/grub.cfg", made("grub.cfg", &menu)?),
        entry("loader/loader.conf", made("loader.conf", "default linux.conf\ntimeout 0\n")?),
        entry("loader/entries/linux.conf", made("linux.conf", &bls)?),
        entry("vmlinuz", content.kernel.to_owned()),
        entry("initrd", content.initrd.to_owned()),
        entry("text", made("text", content.text)?),
    ];
    let (date, mut seed) = (seed::date()?, Seed::new());
    seed.add(content.cmdline);
    seed.add(content.text);
    let mut disk = File::options().read(true).write(true).create(true).truncate(true).open(place)?;
    disk.set_len(DISK).with_context(|| format!("cannot make {} {DISK} bytes long", place.display()))?;
    let kind = GptPartitionType::EFI_SYSTEM;
    let partition = gpt::Partition { name: "ESP", kind, guid: seed.guid("partition ESP"), bytes: Some(ESP) };
    let ranges = gpt::write(&mut disk, BlockSize::BS_512, seed.guid("disk"), &[partition])?;
    drop(disk);
    let range = ranges.first().context("a disk without its partition")?;
    let serial = seed.number("ESP");
    fat::write(place, range, &fat::Fat { kind: fat::Kind::Fat16, label: "ESP", serial, date, files: &files })
}
