//! The files beneath the disks of an emulated server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use scenarios::setup::Setup;

use crate::image;

/// Makes the file of the disk `name` in `folder`, with `mib` MiB: what the setup says that it holds, and zeroes behind that.
/// Returns its path.
pub fn make(folder: &Path, name: &str, mib: u64, setup: &Setup) -> Result<PathBuf> {
    let path = folder.join(name);
    let cannot = || format!("cannot create {}", path.display());
    match setup.contents.iter().find(|(disk, _)| *disk == name) {
        // A copy, because the guest writes to it. A file that was made for this disk is in its place already.
        Some((_, content)) => {
            let source = image::file(content, folder, name)?;
            if source != path {
                fs::copy(&source, &path).with_context(cannot)?;
            }
        }
        None => drop(File::create(&path).with_context(cannot)?),
    }
    let file = File::options().write(true).open(&path)?;
    let (bytes, held) = (mib << 20, file.metadata()?.len());
    ensure!(held <= bytes, "{held} bytes do not fit on the disk {name} of {mib} MiB");
    file.set_len(bytes)?;
    Ok(path)
}
