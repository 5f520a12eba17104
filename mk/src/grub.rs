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

/// Makes the image `place`.
///
/// - `prefix`: the folder with `grub.cfg`. Without a device it is on the medium that GRUB was started from.
/// - `modules`: GRUB's modules in it. Those that they need come by themselves.
/// - `first`: commands that run before `grub.cfg` is read. Their file is `place` with the extension `cfg`.
pub fn image(format: Format, prefix: &str, modules: &[&str], first: Option<&str>, place: &Path) -> Result<()> {
    let mut command = tools::program("usr/bin/grub-mkimage");
    command.arg("--directory").arg(format.folder());
    command.args(["--format", format.name(), "--prefix", prefix, "--output"]).arg(place);
    if let Some(first) = first {
        let config = place.with_extension("cfg");
        fs::write(&config, first).with_context(|| format!("cannot write {}", config.display()))?;
        command.arg("--config").arg(config);
    }
    tools::quietly(command.args(modules), "grub-mkimage").map(drop)
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
