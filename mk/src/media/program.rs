//! One program for UEFI with everything in it: GRUB, and all files of the medium as its memory disk. Firmware loads it by HTTP boot as
//! it is, or from any place that it starts programs from. GRUB then needs neither a driver nor the network.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use scenarios::cpio::Archive;

use super::{Content, PREFIX, modules};
use crate::disk::fat::Entry;
use crate::grub::{self, Format};

/// GRUB's first commands. Without them Debian's GRUB looks for its menu where the firmware has the program from.
const FIRST: &str = "set root=memdisk\nset prefix=(memdisk)PREFIX\nnormal (memdisk)PREFIX/grub.cfg\n";

/// Makes the program `place`. `work`: a folder for what is needed meanwhile.
pub fn program(content: &Content, work: &Path, place: &Path) -> Result<()> {
    let disk = work.join("memory-disk");
    fs::write(&disk, archive(&content.files)?).with_context(|| format!("cannot write {}", disk.display()))?;
    let (prefix, with) = (format!("(memdisk){PREFIX}"), modules(&["efi_gop", "memdisk", "newc"]));
    let first = FIRST.replace("PREFIX", PREFIX);
    let image = grub::Image::new(Format::Efi, &prefix, &with);
    // The commands' file is beside the image.
    let made = work.join("program");
    grub::Image { first: Some(&first), memory_disk: Some(&disk), ..image }.make(&made)?;
    fs::copy(&made, place).with_context(|| format!("cannot write {}", place.display())).map(drop)
}

/// The files as an archive that GRUB's module `newc` reads.
fn archive(files: &[Entry]) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    archive.folders_of(files.iter().map(|file| file.path.as_str()));
    for Entry { path, source } in files {
        let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        archive.file(path, 0o644, &bytes);
    }
    Ok(archive.finish())
}
