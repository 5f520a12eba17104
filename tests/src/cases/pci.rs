//! PCI devices far from bus 0.

use anyhow::{Result, ensure};
use control::Event;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::setup::{FAR_BUS, Nvme};

/// The disk.
const DISK: Nvme = Nvme { serial: "far", mib: 8, block_bytes: 512 };

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about =
        "an NVMe disk behind three bridges beneath a second host bridge is found, and a guest writes and reads it";
    vec![alone(Scenario::new("pci-far", about, QEMU).taking_turns(), far)]
}

fn far(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = Guest::new(1).machine_disk("disk = \"nvme:far\"\nserial = \"far\"\n").then("obey");
    let mut setup = server("pci-far", &[guest]);
    setup.nvme = vec![DISK];
    setup.far = Some(DISK.serial);
    // The memory of the driver's queues.
    setup.memory_mib += 32;
    let mut session = context.boot(&setup)?;
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
    session.all_obey(["a"])?;
    let filled = session.act("a", "disk-fill:far", seconds(240))?;
    ensure!(filled["written"] == filled["read"], "the disk: {filled}");
    session.shut_down().map(drop)
}
