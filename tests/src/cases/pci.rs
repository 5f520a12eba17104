//! PCI devices far from bus 0.

use anyhow::{Result, ensure};
use control::Event;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::setup::{FAR_BUS, Nvme, grub_writes};

/// The disk.
const DISK: Nvme = Nvme { serial: "far", mib: 8, block_bytes: 512 };

/// The register of QEMU's downstream port (xio3130) with the bit that enables its MSI.
const PORT_MSI: u32 = 0x70;
const MSI_ENABLE: u32 = 1 << 16;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "an NVMe disk behind three bridges beneath a second host bridge is found, and a guest writes and reads it; MSI of a bridge that \
         the firmware left on is off, and it still passes the disk's accesses on";
    vec![alone(Scenario::new("pci-far", about, QEMU).taking_turns(), far)]
}

fn far(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = Guest::new(1).machine_disk("disk = \"nvme:far\"\nserial = \"far\"\n").then("obey");
    let mut setup = server("pci-far", &[guest]);
    setup.nvme = vec![DISK];
    setup.far = Some(DISK.serial);
    // The memory of the driver's queues.
    setup.memory_mib += 32;
    // MSI of the switch's downstream port is on, as where firmware has used it for hot plugging.
    let port = u32::from(FAR_BUS) + 2;
    setup.grub = grub_writes(port << 8, PORT_MSI, MSI_ENABLE).into();
    let mut session = context.boot(&setup)?;
    let bridge = format!("the firmware had left it on for {port:02x}:00.0");
    let said = session.wait("a sentence on bridges", seconds(120), |event| match event {
        Event::Report(entry) if entry.text.starts_with("MSI is off for every PCI bridge") => Some(entry.text.clone()),
        _ => None,
    })?;
    context.figures.exactly(
        "bridges whose MSI the firmware left on, in the report",
        said.matches(&bridge).count(),
        1,
    )?;
    // The bus behind the root port, the switch's upstream and its downstream port.
    let place = format!("namespace 1 of {:02x}:00.0: ", FAR_BUS + 3);
    let said = session.wait("the disk in the report", seconds(120), |event| match event {
        Event::Report(entry) if entry.text.starts_with("namespace 1 of ") => Some(entry.text.clone()),
        _ => None,
    })?;
    context.figures.exactly(
        "disks on the third bus behind the second host bridge's",
        said.matches(&place).count(),
        1,
    )?;
    let on = session.pci_register(port << 8, PORT_MSI)? & MSI_ENABLE;
    context.figures.exactly("MSI of that bridge, as the monitor reads it", u64::from(on), 0)?;
    session.all_obey(["a"])?;
    let filled = session.act("a", "disk-fill:far", seconds(240))?;
    ensure!(filled["written"] == filled["read"], "the disk: {filled}");
    session.shut_down().map(drop)
}
