//! A CD's image (ISO 9660), made by xorriso. BIOS starts GRUB by El Torito. UEFI starts it from a FAT file system inside the
//! image. The image also boots as it is from a disk or a stick: its first block has GRUB's boot code, and a partition table
//! names the FAT file system.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Content, PREFIX, modules};
use crate::disk::fat::{self, Entry};
use crate::disk::seed::{self, Seed};
use crate::grub::{self, Format};
use crate::{fetch, tools};

/// GRUB's image for BIOS, on the CD.
const BIOS: &str = "boot/grub/bios.img";
/// The FAT file system that UEFI reads, on the CD.
const EFI: &str = "boot/grub/efi.img";

/// How a CD's image is to be.
#[derive(Clone, Copy, Debug)]
pub struct Cd {
    /// It boots by UEFI as well.
    pub uefi: bool,
}

/// Makes the image `place`. `work`: a folder for what is needed meanwhile.
pub fn cd(content: &Content, cd: Cd, work: &Path, place: &Path) -> Result<()> {
    let mut files = content.files.clone();
    let bios = work.join("bios.img");
    let with = modules(&["biosdisk", "iorw", "iso9660", "memrw", "vbe"]);
    grub::Image::new(Format::BiosCd, PREFIX, &with).make(&bios)?;
    files.push(Entry { path: BIOS.to_owned(), source: bios });
    let seed = if cd.uefi { Some(content.seed()?) } else { None };
    if let Some(seed) = &seed {
        // UEFI gives GRUB the FAT file system as its device. The other files are where this one is.
        let mark = format!("{PREFIX}/{}", &seed.text()[..16]);
        let source = work.join("mark");
        fs::write(&source, "The files of this CD have this hash.\n")?;
        files.push(Entry { path: mark.trim_start_matches('/').to_owned(), source });
        files.push(Entry { path: EFI.to_owned(), source: work.join("efi.img") });
        efi_image(content, seed, &mark, work)?;
    }

    let mut list = String::new();
    for Entry { path, source } in &files {
        list += &format!("/{path}={}\n", escaped(&source.display().to_string()));
    }
    let paths = work.join("paths");
    fs::write(&paths, list).with_context(|| format!("cannot write {}", paths.display()))?;
    let date = content.date.to_string();
    let mut xorriso = tools::program("usr/bin/xorriso");
    xorriso.env(seed::DATE, &date).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
    xorriso.args([
        "-as",
        "mkisofs",
        "-quiet",
        "-r",
        "-iso-level",
        "3",
        "-volid",
        "SIDECORE",
        "-graft-points",
        "-path-list",
    ]);
    xorriso.arg(&paths).args(["--set_all_file_dates", &format!("={date}")]);
    xorriso.args(["-b", BIOS, "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "--grub2-boot-info"]);
    xorriso.arg("--grub2-mbr").arg(grub::bios_path("boot_hybrid.img")).arg("--protective-msdos-label");
    if let Some(seed) = &seed {
        let id = seed.guid("CD").to_string().replace('-', "");
        xorriso.args(["--efi-boot", EFI, "-efi-boot-part", "--efi-boot-image", "--gpt_disk_guid", &id]);
    }
    xorriso.arg("-o").arg(place);
    // It adds to an image that is there.
    if place.exists() {
        fs::remove_file(place).with_context(|| format!("cannot replace {}", place.display()))?;
    }
    tools::quietly(&mut xorriso, "xorriso").map(drop)
}

/// Makes the FAT file system with GRUB for UEFI. `mark`: the file that GRUB looks for to find the CD.
fn efi_image(content: &Content, seed: &Seed, mark: &str, work: &Path) -> Result<()> {
    const MIB: u64 = 1 << 20;
    fetch::ensure_disk_tools()?;
    let efi = work.join("BOOTX64.EFI");
    let first = format!("search --no-floppy --file --set=root {mark}\nset prefix=($root){PREFIX}\n");
    let with = modules(&["efi_gop", "fat", "iso9660", "part_gpt", "part_msdos", "search", "search_fs_file"]);
    grub::Image { first: Some(&first), ..grub::Image::new(Format::Efi, PREFIX, &with) }.make(&efi)?;
    let (image, size) = (work.join("efi.img"), fs::metadata(&efi)?.len().next_multiple_of(MIB) + MIB);
    File::create(&image)?.set_len(size)?;
    let files = [Entry { path: "EFI/BOOT/BOOTX64.EFI".to_owned(), source: efi }];
    let (kind, serial) = (fat::Kind::Fat12, seed.number("FAT"));
    fat::write(&image, &(0..size), &fat::Fat { kind, label: "SIDECORE", serial, date: content.date, files: &files })
}

/// A path as xorriso wants it behind a `=`.
fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace('=', "\\=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equals_sign_in_a_path_is_no_separator() {
        assert_eq!(escaped("/a=b/c\\d"), "/a\\=b/c\\\\d");
    }
}
