//! QEMU's NVMe controllers, their namespaces, and errors beneath them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use scenarios::setup::{Failing, Fault, Setup};

/// Events that QEMU writes among its messages: what it sees of a controller's end.
const EVENTS: [&str; 3] = ["pci_nvme_mmio_cfg", "pci_nvme_del_sq", "pci_nvme_mmio_shutdown_set"];

/// Adds the setup's disks. Their contents are new files in `folder`.
pub fn add(command: &mut Command, folder: &Path, setup: &Setup) -> Result<()> {
    if setup.after_reset.is_some() {
        command.args(EVENTS.into_iter().flat_map(|event| ["-trace", event]));
    }
    let mut namespaces: HashMap<&str, u32> = HashMap::new();
    for disk in &setup.nvme {
        let serial = disk.serial;
        let number = namespaces.entry(serial).or_default();
        *number += 1;
        let name = if *number == 1 { serial.to_owned() } else { format!("{serial}-{number}") };
        let path = folder.join(&name);
        let file = fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(disk.mib << 20)?;
        let mut drive = format!("if=none,id={name},format=raw,discard=unmap,");
        let faults = setup.faults.iter().filter(|fault| fault.serial == serial && *number == 1).enumerate();
        let rules: String = faults.map(|(n, fault)| rule(n, fault)).collect();
        if rules.is_empty() {
            drive += &format!("file={}", path.display());
        } else {
            drive +=
                &format!("file.driver=blkdebug,file.image.driver=file,file.image.filename={}{rules}", path.display());
        }
        if *number == 1 {
            command.args(["-device", &format!("nvme,id=c-{serial},serial={serial}")]);
        }
        let blocks = format!("logical_block_size={0},physical_block_size={0}", disk.block_bytes);
        command.args(["-drive", &drive]);
        command.args(["-device", &format!("nvme-ns,drive={name},bus=c-{serial},nsid={number},{blocks}")]);
    }
    Ok(())
}

/// The options of rule number `n` of blkdebug. Its event `none` is there from the start.
fn rule(n: usize, fault: &Fault) -> String {
    let kind = match fault.what {
        Failing::Reads => "read",
        Failing::Writes => "write",
        Failing::Flushes => "flush",
    };
    let once = if fault.once { "on" } else { "off" };
    let at = format!(",file.inject-error.{n}.");
    let sector = fault.sector.map_or(String::new(), |sector| format!("{at}sector={sector}"));
    format!("{at}event=none{at}iotype={kind}{at}errno=5{at}once={once}{sector}")
}
