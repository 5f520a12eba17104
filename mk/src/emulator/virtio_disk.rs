//! QEMU's virtio block devices.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use scenarios::setup::{Setup, VirtioDisk};

use super::disk_file;

/// Adds the setup's disks. Their contents are new files in `folder`.
pub fn add(command: &mut Command, folder: &Path, setup: &Setup) -> Result<()> {
    for VirtioDisk { name, mib, block_bytes } in &setup.virtio_disks {
        let path = disk_file::make(folder, name, *mib, setup)?;
        let drive = format!("if=none,id={name},format=raw,discard=unmap,file={}", path.display());
        let blocks = format!("logical_block_size={block_bytes},physical_block_size={block_bytes}");
        // Otherwise a virtio device goes round the IOMMU.
        let behind = if setup.iommu.is_some() { ",iommu_platform=on" } else { "" };
        let device = format!("virtio-blk-pci,drive={name},disable-legacy=on{behind},{blocks}");
        command.args(["-drive", &drive, "-device", &device]);
    }
    Ok(())
}
