//! QEMU's NVMe controllers, their namespaces, and errors beneath them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use gpt_disk_types::{BlockSize, GptPartitionType, Guid};
use scenarios::setup::{Damage, FAR_BUS, FILLED, Failing, Fault, Image, Nvme, SLOT, Setup, Table};
use scenarios::write_log::LOG_SECTOR;

use super::disk_file;
use crate::disk::gpt;

/// Events that QEMU writes among its messages: what it sees of a controller's end.
const EVENTS: [&str; 3] = ["pci_nvme_mmio_cfg", "pci_nvme_del_sq", "pci_nvme_mmio_shutdown_set"];

/// Adds the setup's disks. Their contents are new files in `folder`.
pub fn add(command: &mut Command, folder: &Path, setup: &Setup) -> Result<()> {
    if setup.after_reset.is_some() {
        command.args(EVENTS.into_iter().flat_map(|event| ["-trace", event]));
    }
    if setup.traces_admin {
        command.args(["-trace", "pci_nvme_admin_cmd"]);
    }
    let mut namespaces: HashMap<&str, u32> = HashMap::new();
    for disk in &setup.nvme {
        let serial = disk.serial;
        let number = namespaces.entry(serial).or_default();
        *number += 1;
        let name = if *number == 1 { serial.to_owned() } else { format!("{serial}-{number}") };
        let path = disk_file::make(folder, &name, disk.mib, setup)?;
        if let Some(table) = setup.tables.iter().find(|table| table.disk == name) {
            partition(&path, disk, table).with_context(|| format!("the partitions of {name}"))?;
        }
        let blocks = format!("logical_block_size={0},physical_block_size={0}", disk.block_bytes);
        if setup.in_slot == Some(serial) {
            // QEMU takes no namespace at a controller that is put in later, so the namespace is the controller's own.
            command.args(["-device", &format!("pcie-root-port,id=bay,bus=pcie.0,addr={SLOT:#x},chassis=1,slot=1")]);
            // The hypervisor is told nothing by ACPI.
            command.args(["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]);
            let node =
                format!("driver=raw,node-name={name},discard=unmap,file.driver=file,file.filename={}", path.display());
            command.args(["-blockdev", &node]);
            command.args(["-device", &format!("nvme,id=c-{serial},serial={serial},drive={name},bus=bay,{blocks}")]);
            continue;
        }
        let logged = *number == 1 && setup.logged.contains(&serial);
        let driver = if logged { "driver=blklogwrites" } else { "format=raw" };
        let mut drive = format!("if=none,id={name},{driver},discard=unmap,");
        let faults = setup.faults.iter().filter(|fault| fault.serial == serial && *number == 1).enumerate();
        let rules: String = faults.map(|(n, fault)| rule(n, fault)).collect();
        if logged {
            let log = path.with_added_extension("log");
            fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
            drive += &format!(
                "log-sector-size={LOG_SECTOR},file.driver=file,file.filename={},log.driver=file,log.filename={}",
                path.display(),
                log.display()
            );
        } else if *number == 1 && setup.throttled.contains(&serial) {
            command.args(["-object", &format!("throttle-group,id=slow-{serial}")]);
            drive = drive.replace("format=raw", "driver=throttle");
            drive += &format!(
                "throttle-group=slow-{serial},file.driver=raw,file.discard=unmap,file.file.driver=file,file.file.filename={}",
                path.display()
            );
        } else if rules.is_empty() {
            drive += &format!("file={}", path.display());
        } else {
            drive +=
                &format!("file.driver=blkdebug,file.image.driver=file,file.image.filename={}{rules}", path.display());
        }
        if *number == 1 {
            let mut controller = format!("nvme,id=c-{serial},serial={serial}");
            if setup.far == Some(serial) {
                controller += ",bus=far";
                // Root port, and a switch's upstream and downstream port.
                command.args(["-device", &format!("pxb-pcie,id=second,bus=pcie.0,bus_nr={FAR_BUS}")]);
                command.args(["-device", "pcie-root-port,id=far-root,bus=second,chassis=20,slot=20"]);
                command.args(["-device", "x3130-upstream,id=far-switch,bus=far-root"]);
                command.args(["-device", "xio3130-downstream,id=far,bus=far-switch,chassis=21,slot=21"]);
            }
            command.args(["-device", &controller]);
        }
        command.args(["-drive", &drive]);
        command.args(["-device", &format!("nvme-ns,drive={name},bus=c-{serial},nsid={number},{blocks}")]);
    }
    if let Some(image) = &setup.image {
        let (file, keep) = match image {
            Image::Debian => (crate::disk::image(&[])?, ",snapshot=on"),
            Image::DebianSsh => (crate::disk::image(&["openssh-server"])?, ",snapshot=on"),
            Image::File(path) => (path.clone(), ""),
        };
        // A comma in a path would end it.
        let file = file.display().to_string().replace(',', ",,");
        command.args(["-drive", &format!("if=none,id=image,format=raw,discard=unmap,file={file}{keep}")]);
        command.args(["-device", "nvme,serial=image,drive=image"]);
    }
    Ok(())
}

/// Fills a disk, writes its partition table, and keeps a copy.
fn partition(path: &Path, disk: &Nvme, table: &Table) -> Result<()> {
    fs::write(path, vec![FILLED; (disk.mib << 20) as usize])?;
    let mut file = fs::File::options().read(true).write(true).open(path)?;
    let guid = |number: usize| Guid::from_random_bytes([number as u8 + 1; 16]);
    let partitions = table.partitions.iter().enumerate().map(|(number, &(name, mib))| gpt::Partition {
        name,
        kind: GptPartitionType::BASIC_DATA,
        guid: guid(number),
        bytes: Some(mib << 20),
    });
    let block = BlockSize::new(disk.block_bytes).context("a block size")?;
    gpt::write(&mut file, block, guid(table.partitions.len()), &partitions.collect::<Vec<_>>())?;
    let headers = match table.damage {
        Damage::None => &[][..],
        Damage::Primary => &[block.to_u64()],
        Damage::Both => &[block.to_u64(), (disk.mib << 20) - block.to_u64()],
    };
    for header in headers {
        // A byte of its checksum.
        let mut byte = [0];
        file.read_exact_at(&mut byte, header + 16)?;
        file.write_all_at(&[byte[0] ^ 1], header + 16)?;
    }
    drop(file);
    let mut copy = path.as_os_str().to_owned();
    copy.push(".before");
    fs::copy(path, copy)?;
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
