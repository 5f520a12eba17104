//! Makes GRUB's images by grub-mkimage. Each has all modules in it that its menu needs, so a medium has no folder of modules.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{paths, tools};

/// The kind of an image: the firmware that starts it, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// BIOS starts it through the boot code of a disk.
    BiosDisk,
    /// BIOS starts it from a CD (El Torito, without emulation of a disk).
    BiosCd,
    /// BIOS starts it by network (PXE).
    BiosNetwork,
    /// UEFI starts it.
    Efi,
}

impl Format {
    /// The format's name in grub-mkimage.
    fn name(self) -> &'static str {
        match self {
            Self::BiosDisk => "i386-pc",
            Self::BiosCd => "i386-pc-eltorito",
            Self::BiosNetwork => "i386-pc-pxe",
            Self::Efi => "x86_64-efi",
        }
    }

    /// The folder of GRUB's modules for it.
    fn folder(self) -> PathBuf {
        let platform = if self == Self::Efi { "x86_64-efi" } else { "i386-pc" };
        paths::tree().join("usr/lib/grub").join(platform)
    }
}

/// An image to be made.
pub struct Image<'a> {
    /// What starts it.
    pub format: Format,
    /// The folder with `grub.cfg`. Without a device it is on the medium that GRUB was started from.
    pub prefix: &'a str,
    /// GRUB's modules in it. Those that they need come by themselves.
    pub modules: &'a [&'a str],
    /// Commands that run before `grub.cfg` is read. Their file is the image's path with the extension `cfg`.
    pub first: Option<&'a str>,
    /// A file that is GRUB's device `memdisk`.
    pub memory_disk: Option<&'a Path>,
}

impl<'a> Image<'a> {
    /// An image without commands of its own and without a memory disk.
    pub fn new(format: Format, prefix: &'a str, modules: &'a [&'a str]) -> Self {
        Self { format, prefix, modules, first: None, memory_disk: None }
    }

    /// Makes the image `place`.
    pub fn make(&self, place: &Path) -> Result<()> {
        let mut command = tools::program("usr/bin/grub-mkimage");
        command.arg("--directory").arg(self.format.folder());
        command.args(["--format", self.format.name(), "--prefix", self.prefix, "--output"]).arg(place);
        if let Some(first) = self.first {
            let config = place.with_extension("cfg");
            fs::write(&config, first).with_context(|| format!("cannot write {}", config.display()))?;
            command.arg("--config").arg(config);
        }
        if let Some(disk) = self.memory_disk {
            command.arg("--memdisk").arg(disk);
        }
        tools::quietly(command.args(self.modules), "grub-mkimage").map(drop)
    }
}

/// Reads a file of GRUB's for BIOS, such as `boot.img`: the code of a disk's first block.
pub fn bios_file(name: &str) -> Result<Vec<u8>> {
    let path = bios_path(name);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The path of a file of GRUB's for BIOS.
pub fn bios_path(name: &str) -> PathBuf {
    Format::BiosDisk.folder().join(name)
}
