//! IOMMUs that the firmware has left on: `tests/firmware-remapping` switches one on between GRUB and sidecore. QEMU tells what the
//! unit does, and each access that it refuses.

use anyhow::{Context as _, Result, ensure};
use control::Event;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server, with_entries};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{HOST_ADDRESS, Iommu, Nvme, Uplink, VirtioDisk};

/// Pings from the guest to the host, by the NIC behind the IOMMU.
const PINGS: u64 = 20;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let scenario = |name, about| Scenario::new(name, about, QEMU).taking_turns();
    vec![
        alone(
            scenario(
                "iommu-intel",
                "the firmware left Intel's IOMMU on, by tables without entries: it is switched off, and NIC and disks work",
            ),
            |context, ()| left_on(context, "iommu-intel", Iommu::IntelNothing),
        ),
        alone(scenario("iommu-identity", "the same by tables that let each device reach all memory"), |context, ()| {
            left_on(context, "iommu-identity", Iommu::IntelIdentity)
        }),
        alone(scenario("iommu-amd", "the same with AMD's IOMMU, by tables without entries"), |context, ()| {
            left_on(context, "iommu-amd", Iommu::AmdNothing)
        }),
    ]
}

fn left_on(context: &mut Context<'_>, name: &str, iommu: Iommu) -> Result<()> {
    let disks = ["nvme:behind", "vda"].map(|disk| {
        let serial = disk.trim_start_matches("nvme:");
        format!("disk = \"{disk}\"\nserial = \"{serial}\"\n")
    });
    let guest = disks.iter().fold(Guest::new(1), |guest, lines| guest.machine_disk(lines)).then("obey");
    let mut setup = with_entries(server(name, &[guest]), "[[port]]\ndevice = \"first\"\n\n");
    setup.iommu = Some(iommu);
    setup.uplink = Uplink::Virtio;
    setup.nvme = vec![Nvme { serial: "behind", mib: 8, block_bytes: 512 }];
    setup.virtio_disks = vec![VirtioDisk { name: "vda", mib: 8, block_bytes: 512 }];
    // The memory of the drivers' queues.
    setup.memory_mib += 32;
    let mut session = context.boot(&setup)?;
    let said = session.wait("what became of the IOMMU", seconds(120), |event| match event {
        Event::Report(entry) if entry.text.contains("'s IOMMU at 0x") => Some(entry.clone()),
        _ => None,
    })?;
    let parts = if iommu == Iommu::AmdNothing {
        "the firmware had left on translation, the command queue, a log in memory; it is off now"
    } else {
        "the firmware had left on translation, interrupt remapping, the command queue; it is off now"
    };
    let figures = &mut context.figures;
    figures.exactly("times the report has what had been on", said.text.matches(parts).count(), 1)?;
    let on =
        session.console()?.lines().filter(|line| line.starts_with("firmware: ") && line.contains(" is on: ")).count();
    figures.exactly("units that the firmware says are on", on, 1)?;

    session.all_obey(["a"])?;
    let ping = session.act("a", &format!("ping:{PINGS}:{HOST_ADDRESS}"), seconds(120))?;
    context.figures.exactly(
        "pings to the host answered, by the NIC behind the IOMMU",
        number(&ping, "received")?,
        PINGS,
    )?;
    for serial in ["behind", "vda"] {
        let filled = session.act("a", &format!("disk-fill:{serial}"), seconds(240))?;
        ensure!(filled["written"] == filled["read"], "the disk {serial}: {filled}");
    }
    let told = Told::read(&session, iommu)?;
    let figures = &mut context.figures;
    figures.at_least("times QEMU says that the unit goes on", told.on, 1)?;
    figures.at_least("times QEMU says that it goes off", told.off, 1)?;
    figures.exactly("accesses and interrupts that it has refused since", told.refused, 0)?;
    session.shut_down().map(drop)
}

/// What QEMU says of a unit.
struct Told {
    /// Times that translation goes on, and off.
    on: usize,
    off: usize,
    /// Accesses and interrupts refused after it has gone off for the first time.
    refused: usize,
}

impl Told {
    fn read(session: &Session, iommu: Iommu) -> Result<Self> {
        let text = String::from_utf8_lossy(&session.file("emulator")?).into_owned();
        Self::from(&text, iommu).context("QEMU says nothing of its IOMMU")
    }

    /// Reads QEMU's messages. `None`: none is about translation.
    fn from(text: &str, iommu: Iommu) -> Option<Self> {
        let (goes_on, goes_off) = match iommu {
            Iommu::IntelNothing | Iommu::IntelIdentity => ("vtd_dmar_enable enable 1", "vtd_dmar_enable enable 0"),
            Iommu::AmdNothing => ("amdvi_control_status", "amdvi_control_status"),
        };
        let count = |word: &str| text.lines().filter(|line| line.contains(word)).count();
        let (_, since) = text.split_once(goes_off)?;
        let refused = [
            "vtd_dmar_fault",
            "vtd_frr_new",
            "vtd_err",
            "vtd_iommu_translate",
            "amdvi_page_fault",
            "amdvi_evntlog_fail",
            "amdvi_ir_err",
        ];
        let refused = since.lines().filter(|line| refused.iter().any(|word| line.contains(word))).count();
        Some(Self { on: count(goes_on), off: count(goes_off), refused })
    }
}
