//! A USB stick's image.
//!
//! It has a GUID partition table with two partitions: the BIOS boot partition with GRUB's image for BIOS, and a FAT32
//! partition with all files, UEFI's loader among them. The first block has GRUB's boot code, which BIOS starts.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use gpt_disk_types::{BlockSize, GptPartitionType, guid};

use super::{Content, PREFIX, modules};
use crate::disk::fat::{self, Entry};
use crate::disk::seed::Seed;
use crate::disk::{self, gpt};
use crate::grub::{self, Format};
use crate::{fetch, tools};

/// The type of the partition with GRUB's image for BIOS ("Hah!IdontNeedEFI").
const BIOS_BOOT: GptPartitionType = GptPartitionType(guid!("21686148-6449-6e6f-744e-656564454649"));
/// Bytes of that partition.
const BIOS_BOOT_BYTES: u64 = 1 << 20;
/// Bytes of a block.
const BLOCK: usize = 512;
/// Least bytes of the FAT32 partition: enough clusters for FAT32.
const LEAST_FAT: u64 = 288 << 20;
/// Bytes of the FAT32 partition that are free, if no size is given.
const FREE: u64 = 64 << 20;

/// How a stick's image is to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stick<'a> {
    /// Bytes of the image. `None`: as many as the files need, and some room.
    pub size: Option<u64>,
    /// The FAT32 partition is an EFI system partition. Otherwise it is of the type "basic data", which every system mounts.
    pub esp: bool,
    /// A UEFI application that the firmware starts instead of GRUB. It starts GRUB, which is beside it as `GRUBX64.EFI`. For a scenario.
    pub before_grub: Option<&'a Path>,
}

/// Makes the image `place`. `work`: a folder for what is needed meanwhile.
pub fn stick(content: &Content, stick: Stick<'_>, work: &Path, place: &Path) -> Result<()> {
    fetch::ensure_disk_tools()?;
    let (bios, efi) = (work.join("core.img"), work.join("BOOTX64.EFI"));
    let here = ["fat", "part_gpt"];
    // The device before the comma is the one that BIOS has booted from.
    let with = modules(&[&here[..], &["biosdisk"]].concat());
    grub::Image::new(Format::BiosDisk, &format!("(,gpt2){PREFIX}"), &with).make(&bios)?;
    grub::Image::new(Format::Efi, PREFIX, &modules(&[&here[..], &["efi_gop"]].concat())).make(&efi)?;
    let mut files = content.files.clone();
    let mut start = |name: &str, source| files.push(Entry { path: format!("EFI/BOOT/{name}"), source });
    match stick.before_grub {
        Some(first) => {
            start("BOOTX64.EFI", first.to_owned());
            start("GRUBX64.EFI", efi);
        }
        None => start("BOOTX64.EFI", efi),
    }

    let size = match stick.size {
        Some(size) => {
            let least = 2 * gpt::ALIGNMENT + BIOS_BOOT_BYTES + LEAST_FAT.next_multiple_of(gpt::ALIGNMENT);
            ensure!(
                size >= least,
                "--size {size}: a stick has {} MiB at least, because of FAT32",
                least.div_ceil(1 << 20)
            );
            size
        }
        None => {
            let mut total = FREE;
            for file in &files {
                total += fs::metadata(&file.source)?.len();
            }
            let fat = total.max(LEAST_FAT).next_multiple_of(gpt::ALIGNMENT);
            // The partition tables are before and behind.
            2 * gpt::ALIGNMENT + BIOS_BOOT_BYTES + fat
        }
    };
    let mut disk = File::options().read(true).write(true).create(true).truncate(true).open(place)?;
    disk.set_len(size).with_context(|| format!("cannot make {} {size} bytes long", place.display()))?;
    let seed = content.seed()?;
    let ranges = gpt::write(&mut disk, BlockSize::BS_512, seed.guid("disk"), &partitions(stick, &seed))?;
    let [bios_range, fat_range] = ranges.as_slice() else { bail!("{} partitions instead of two", ranges.len()) };

    let first = bios_range.start / BLOCK as u64;
    let core = core(fs::read(&bios)?, first)?;
    ensure!(
        core.len() as u64 <= BIOS_BOOT_BYTES,
        "GRUB's image for BIOS has {} bytes, more than its partition",
        core.len()
    );
    for (at, bytes) in [(0, &boot_code(&grub::bios_file("boot.img")?, first)?[..]), (bios_range.start, &core[..])] {
        disk.seek(SeekFrom::Start(at))?;
        disk.write_all(bytes)?;
    }
    drop(disk);
    let (kind, serial) = (fat::Kind::Fat32, seed.number("FAT"));
    fat::write(place, fat_range, &fat::Fat { kind, label: "SIDECORE", serial, date: content.date, files: &files })
}

/// The partitions of a stick: the BIOS boot partition, and the FAT32 partition behind it.
fn partitions(stick: Stick, seed: &Seed) -> [gpt::Partition<'static>; 2] {
    let kind = if stick.esp { GptPartitionType::EFI_SYSTEM } else { GptPartitionType::BASIC_DATA };
    [
        gpt::Partition {
            name: "GRUB for BIOS",
            kind: BIOS_BOOT,
            guid: seed.guid("partition BIOS"),
            bytes: Some(BIOS_BOOT_BYTES),
        },
        gpt::Partition { name: "sidecore", kind, guid: seed.guid("partition FAT"), bytes: None },
    ]
}

/// Offsets in GRUB's boot.img, which has a block.
mod boot_img {
    use std::ops::Range;

    /// The first block of the image that it loads: 64 bits.
    pub const CORE: Range<usize> = 0x5c..0x64;
    /// A jump across code for BIOSes that give a wrong number of the boot drive.
    pub const DRIVE_CHECK: Range<usize> = 0x66..0x68;
    /// End of the code: the disk's signature and the partitions follow.
    pub const END: usize = 440;
}

/// The code of a disk's first block: boot.img that loads the image beginning at this block. As `grub-install` does on disks, the
/// check of the drive's number is switched on.
fn boot_code(image: &[u8], core: u64) -> Result<Vec<u8>> {
    const NOPS: [u8; 2] = [0x90, 0x90];
    /// The opcode of a short jump.
    const JUMP: u8 = 0xeb;
    let mut code = image.get(..boot_img::END).context("boot.img is shorter than a block")?.to_vec();
    let check = &mut code[boot_img::DRIVE_CHECK];
    ensure!(
        check[0] == JUMP,
        "boot.img has {:#x} where the jump across the check of the drive was: another GRUB",
        check[0]
    );
    check.copy_from_slice(&NOPS);
    code[boot_img::CORE].copy_from_slice(&core.to_le_bytes());
    Ok(code)
}

/// GRUB's image for BIOS at this block. Its first block loads the others by a list at its end: the first of them (64 bits), their
/// number (16 bits), and the segment to load them to (16 bits).
fn core(mut image: Vec<u8>, first: u64) -> Result<Vec<u8>> {
    image.resize(image.len().next_multiple_of(BLOCK), 0);
    let others = (image.len() / BLOCK).checked_sub(1).context("GRUB's image for BIOS is empty")?;
    let list = image.get_mut(BLOCK - 12..BLOCK).context("GRUB's image for BIOS is shorter than a block")?;
    let number = u16::from_le_bytes([list[8], list[9]]);
    ensure!(
        usize::from(number) == others,
        "GRUB's image for BIOS counts {number} blocks, and has {others}: another GRUB"
    );
    list[..8].copy_from_slice(&(first + 1).to_le_bytes());
    Ok(image)
}

/// Lets tools that others wrote check a stick's image: sgdisk its partition table, fsck its file system. `esp`: whether the file system is
/// in an EFI system partition. `work`: a folder for a copy of the file system.
pub fn judge(image: &Path, esp: bool, work: &Path) -> Result<()> {
    fetch::ensure_disk_tools()?;
    disk::judge_table(image)?;
    let mut file = File::open(image).with_context(|| format!("cannot open {}", image.display()))?;
    let ranges = gpt::read(&mut file, BlockSize::BS_512)?;
    let [_, fat] = ranges.as_slice() else { bail!("{} partitions instead of two", ranges.len()) };
    disk::judge_fat(&mut file, fat, &work.join("fat"))?;
    let said = tools::quietly(tools::disk_tool("usr/sbin/sgdisk").arg("--print").arg(image), "sgdisk --print")?;
    // sgdisk's own numbers: BIOS boot partition, then EFI system partition or "Microsoft basic data".
    let (types, wanted) = (types(&said), ["EF02", if esp { "EF00" } else { "0700" }]);
    ensure!(types == wanted, "sgdisk sees partitions of the types {types:?} instead of {wanted:?}:\n{said}");
    Ok(())
}

/// The types of the partitions in what `sgdisk --print` says: the sixth word of each line that begins with a number.
fn types(said: &str) -> Vec<&str> {
    let line = |line: &'_ str| line.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok());
    said.lines().filter(|text| line(text)).filter_map(|text| text.split_whitespace().nth(5)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fat_partition_is_an_esp_only_if_that_is_asked_for() {
        let kinds = |esp| partitions(Stick { esp, ..Stick::default() }, &Seed::new()).map(|partition| partition.kind);
        // UEFI specification 2.10, 5.3.3; "Microsoft basic data" is not in it.
        let (esp, data) =
            (guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"), guid!("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"));
        assert_eq!(kinds(true), [BIOS_BOOT, GptPartitionType(esp)]);
        assert_eq!(kinds(false), [BIOS_BOOT, GptPartitionType(data)]);
    }

    #[test]
    fn the_types_of_partitions_are_found_in_the_words_of_sgdisk() {
        let said = "Disk stick: 595968 sectors, 291.0 MiB\n\nNumber  Start (sector)    End (sector)  Size       Code  Name\n   \
                    1            2048            4095   1024.0 KiB  EF02  GRUB for BIOS\n   \
                    2            4096          593919   288.0 MiB   0700  sidecore\n";
        assert_eq!(types(said), ["EF02", "0700"]);
        assert!(types("").is_empty());
    }

    #[test]
    fn the_boot_code_loads_the_image_where_it_is() {
        let mut image = vec![7; BLOCK];
        image[0x66..0x68].copy_from_slice(&[0xeb, 0x05]);
        let code = boot_code(&image, 0x1_2345_6789).unwrap();
        assert_eq!(code.len(), 440);
        assert_eq!(code[0x5c..0x64], [0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0]);
        assert_eq!(code[0x64..0x69], [7, 7, 0x90, 0x90, 7]);
        assert!(boot_code(&[7; BLOCK], 1).unwrap_err().to_string().contains("another GRUB"));
        assert!(boot_code(&[7; 100], 1).is_err());
    }

    #[test]
    fn the_image_for_bios_loads_its_other_blocks_from_where_they_are() {
        let mut image = vec![7; 3 * BLOCK - 5];
        image[500..512].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x20, 0x08]);
        let placed = core(image.clone(), 2048).unwrap();
        assert_eq!(placed.len(), 3 * BLOCK);
        assert_eq!(placed[500..512], [1, 8, 0, 0, 0, 0, 0, 0, 2, 0, 0x20, 0x08]);
        assert_eq!(placed[3 * BLOCK - 5..], [0; 5]);
        image[508] = 3;
        assert!(core(image, 2048).unwrap_err().to_string().contains("counts 3 blocks, and has 2"));
        assert!(core(Vec::new(), 2048).is_err());
    }
}
