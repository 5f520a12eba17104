//! QEMU's virtio block devices.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use scenarios::setup::VirtioDisk;

/// Adds the disks. Their contents are new files in `folder`.
pub fn add(command: &mut Command, folder: &Path, disks: &[VirtioDisk]) -> Result<()> {
    for VirtioDisk { name, mib, block_bytes } in disks {
        let path = folder.join(name);
        let file = fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(mib << 20)?;
        let drive = format!("if=none,id={name},format=raw,discard=unmap,file={}", path.display());
        let blocks = format!("logical_block_size={block_bytes},physical_block_size={block_bytes}");
        let device = format!("virtio-blk-pci,drive={name},disable-legacy=on,{blocks}");
        command.args(["-drive", &drive, "-device", &device]);
    }
    Ok(())
}
