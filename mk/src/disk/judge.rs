//! Lets tools that others wrote judge an image: sgdisk its partition table, fsck its file systems.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use gpt_disk_types::BlockSize;

use super::gpt;
use crate::{fetch, tools};

/// Checks an image. The error has what the tool said that found something. `work`: a folder for a copy of the ESP.
pub fn judge(image: &Path, work: &Path) -> Result<()> {
    fetch::ensure_disk_tools()?;
    judge_table(image)?;
    let mut disk = File::open(image).with_context(|| format!("cannot open {}", image.display()))?;
    let ranges = gpt::read(&mut disk, BlockSize::BS_512)?;
    let [esp, root] = ranges.as_slice() else { bail!("{} partitions instead of two", ranges.len()) };
    judge_fat(&mut disk, esp, &work.join("esp"))?;
    let place = format!("{}?offset={}", image.display(), root.start);
    tools::quietly(tools::disk_tool("usr/sbin/e2fsck").args(["-f", "-n", &place]), "e2fsck").map(drop)
}

/// Lets sgdisk check the partition table of an image. The tools for disk images are there.
pub fn judge_table(image: &Path) -> Result<()> {
    let said = tools::quietly(tools::disk_tool("usr/sbin/sgdisk").arg("--verify").arg(image), "sgdisk --verify")?;
    // sgdisk ends with 0 whatever it finds.
    ensure!(said.contains("No problems found"), "sgdisk --verify:\n{said}");
    Ok(())
}

/// Lets fsck.fat check the file system in these bytes of a disk. `copy`: a file for it, which is removed afterwards. The tools
/// for disk images are there.
pub fn judge_fat(disk: &mut File, range: &Range<u64>, copy: &Path) -> Result<()> {
    disk.seek(SeekFrom::Start(range.start))?;
    sparse_copy(&mut disk.take(range.end - range.start), &mut File::create(copy)?)?;
    tools::quietly(tools::disk_tool("usr/sbin/fsck.fat").args(["-n", "-V"]).arg(copy), "fsck.fat")?;
    Ok(fs::remove_file(copy)?)
}

/// Copies a file, and leaves holes where it is zero.
fn sparse_copy(from: &mut impl Read, to: &mut File) -> Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut length = 0;
    loop {
        let read = from.read(&mut buffer)?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        if piece.iter().any(|byte| *byte != 0) {
            to.seek(SeekFrom::Start(length))?;
            to.write_all(piece)?;
        }
        length += read as u64;
    }
    Ok(to.set_len(length)?)
}
