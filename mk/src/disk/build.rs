//! Puts an image together: partition table, ESP and root file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use gpt_disk_types::{BlockSize, GptPartitionType, guid};

use super::root::{self, Spec};
use super::{esp, fat, gpt};
use crate::{fetch, paths, tools, ui};

/// The type of a root file system for x86-64 (Discoverable Partitions Specification).
const ROOT: GptPartitionType = GptPartitionType(guid!("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"));
/// Bytes of the ESP: room for several kernels, and enough for FAT32 with clusters of 4 KiB.
const ESP: u64 = 288 << 20;
/// Least bytes of an image. The usual packages need 250 MiB of it.
pub const LEAST: u64 = 768 << 20;

/// Builds the image, unless it is there. `again`: builds it anyway. Returns its path.
pub fn image(size: u64, packages: &[String], again: bool) -> Result<PathBuf> {
    ensure!(size >= LEAST, "an image of {size} bytes is too small: it needs {} MiB or more", LEAST >> 20);
    fetch::ensure(false)?;
    fetch::ensure_disk_tools()?;
    let spec = Spec::new(packages)?;
    let folder = paths::runs().join("disk").join(&spec.seed.text()[..12]);
    fs::create_dir_all(&folder)?;
    let (archive, image) = (folder.join("root.tar"), folder.join(format!("{size}.img")));
    if again || !archive.exists() {
        let work = folder.join("work");
        fs::create_dir_all(&work)?;
        root::build(&spec, &work, &work.join("done.tar"))?;
        // Images of the old archive go with it.
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "img") {
                fs::remove_file(path)?;
            }
        }
        fs::rename(work.join("done.tar"), &archive)?;
    }
    if !image.exists() {
        let unfinished = folder.join("unfinished");
        assemble(&spec, &archive, size, &folder, &unfinished)?;
        fs::rename(&unfinished, &image)?;
    }
    Ok(image)
}

fn assemble(spec: &Spec, archive: &Path, size: u64, folder: &Path, place: &Path) -> Result<()> {
    ui::step("disk", "partition table, ESP and root file system");
    let mut seed = spec.seed.clone();
    seed.add(size.to_string());
    let mut disk = File::options().read(true).write(true).create(true).truncate(true).open(place)?;
    disk.set_len(size).with_context(|| format!("cannot make {} {size} bytes long", place.display()))?;
    let kind = GptPartitionType::EFI_SYSTEM;
    let partitions = [
        gpt::Partition { name: "ESP", kind, guid: seed.guid("partition ESP"), bytes: Some(ESP) },
        gpt::Partition { name: "root", kind: ROOT, guid: seed.guid("partition root"), bytes: None },
    ];
    let ranges = gpt::write(&mut disk, BlockSize::BS_512, seed.guid("disk"), &partitions)?;
    let [esp_range, root_range] = ranges.as_slice() else { unreachable!("two were asked for") };
    drop(disk);
    let files = esp::files(spec, archive, folder)?;
    let kind = fat::Kind::Fat32;
    let fat = fat::Fat { kind, label: "ESP", serial: spec.esp_serial(), date: spec.date, files: &files };
    fat::write(place, esp_range, &fat)?;

    let mut mke2fs = tools::disk_tool("usr/sbin/mke2fs");
    mke2fs.env("MKE2FS_CONFIG", paths::disk_tools().join("etc/mke2fs.conf"));
    mke2fs.env(super::seed::DATE, spec.date.to_string());
    mke2fs.args(["-q", "-F", "-t", "ext4", "-L", "root", "-U", &spec.root_uuid(), "-d"]).arg(archive);
    // The image is zero where nothing was written, so nothing is left to initialize for the kernel.
    let options = format!(
        "offset={},hash_seed={},assume_storage_prezeroed=1,root_owner=0:0",
        root_range.start,
        spec.seed.guid("ext4 hash seed")
    );
    mke2fs.args(["-E", &options]).arg(place).arg(format!("{}k", (root_range.end - root_range.start) / 1024));
    tools::quietly(&mut mke2fs, "mke2fs")
        .context("the root file system could not be made; if its packages do not fit, use a larger --size")?;
    Ok(())
}
