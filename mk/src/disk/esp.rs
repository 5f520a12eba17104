//! What is on the EFI system partition: GRUB, which UEFI firmware starts; an entry of the Boot Loader Specification,
//! which other firmware reads by itself; kernel and initramfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::fat::Entry;
use super::root::{Spec, sources};
use crate::grub::{self, Format};
use crate::tools;

/// GRUB's modules: what its menu needs, and a few commands for a person at its prompt.
const MODULES: &[&str] =
    &["cat", "configfile", "echo", "fat", "halt", "linux", "ls", "minicmd", "normal", "part_gpt", "reboot"];

/// The files of the ESP. `root`: the archive of the root file system. `work`: a folder for what is needed meanwhile.
pub fn files(spec: &Spec, root: &Path, work: &Path) -> Result<Vec<Entry>> {
    let options = format!("root=UUID={} ro console=ttyS0,115200", spec.root_uuid());
    let text = |place: &str, name: &str| -> Result<Entry> {
        let path = sources().join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let source = work.join(name);
        fs::write(&source, text.replace("OPTIONS", &options))?;
        Ok(Entry { path: place.to_owned(), source })
    };
    let file = |place: &str, source| Entry { path: place.to_owned(), source };
    let [kernel, initramfs] = boot_files(root, &work.join("boot"))?;
    Ok(vec![
        file("EFI/BOOT/BOOTX64.EFI", grub(work)?),
        text("EFI/BOOT/grub.cfg", "grub.cfg")?,
        text("loader/loader.conf", "loader.conf")?,
        text("loader/entries/debian.conf", "debian.conf")?,
        file("debian/vmlinuz", kernel),
        file("debian/initrd.img", initramfs),
    ])
}

/// Makes GRUB's image. It reads its menu from the partition that it was started from.
pub fn grub(work: &Path) -> Result<PathBuf> {
    let place = work.join("BOOTX64.EFI");
    grub::Image::new(Format::Efi, "/EFI/BOOT", MODULES).make(&place)?;
    Ok(place)
}

/// Takes the kernel and its initramfs out of the root file system's archive.
fn boot_files(root: &Path, folder: &Path) -> Result<[PathBuf; 2]> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(root).arg("-C").arg(folder).args(["--no-same-owner", "--wildcards"]);
    tar.args(["./boot/vmlinuz-*", "./boot/initrd.img-*"]);
    tools::quietly(&mut tar, "tar")?;
    let boot = folder.join("boot");
    let only = |prefix: &str| -> Result<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&boot)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
                found.push(path);
            }
        }
        match found.as_slice() {
            [one] => Ok(one.clone()),
            _ => bail!("the root file system has {} files /boot/{prefix}*, and needs exactly one", found.len()),
        }
    };
    Ok([only("vmlinuz-")?, only("initrd.img-")?])
}
