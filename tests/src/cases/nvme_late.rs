//! An NVMe disk that is late: QEMU's throttle group beneath it holds requests back for longer than the driver waits.

use anyhow::{Result, ensure};
use control::Event;
use serde_json::json;

use super::block::checksum;
use crate::boot::{Boot, alone};
use crate::counts::disk;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::Nvme;

/// The disk that is late, and one that is not.
const DISKS: [Nvme; 2] =
    [Nvme { serial: "late", mib: 8, block_bytes: 512 }, Nvme { serial: "prompt", mib: 8, block_bytes: 512 }];
/// Bytes a second with which a write of 4 KiB is late, after an earlier one: it takes 4 s. The driver aborts it after 2 s, and
/// waits for 5 s more.
const LATE: u64 = 1024;
/// The same for one that has not ended when the driver gives up the controller.
const HANGING: u64 = 16;
/// Writes at the same time.
const WRITES: u64 = 6;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "requests beneath a disk are later than the driver waits: they are aborted, the controller is reset if that does not \
                 help, each gets an answer, another disk goes on meanwhile, and so does this one afterwards";
    vec![alone(Scenario::new("block-nvme-late", about, QEMU).taking_turns(), late)]
}

fn late(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [(1, "late"), (2, "prompt")].map(|(number, serial)| {
        Guest::new(number).machine_disk(&format!("disk = \"nvme:{serial}\"\nserial = \"{serial}\"\n")).then("obey")
    });
    let mut setup = server("block-nvme-late", &guests);
    setup.nvme = DISKS.to_vec();
    setup.throttled = vec!["late"];
    setup.traces_admin = true;
    setup.options = "emulator nvme-timeout=2";
    // The memory of the driver's queues.
    setup.memory_mib += 32;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a", "b"])?;
    context.figures.exactly("Aborts before anything was late", aborts(&session)?, 0)?;

    // The first write may be let through at once. The second one is late.
    limit(&mut session, "late", "bps-total", LATE)?;
    let mut late_failed = 0;
    for kib in [0, 4] {
        let said = session.act("a", &format!("disk-once:late:write:{kib}"), seconds(60))?;
        late_failed += number(&said, "failed")?;
    }
    context.figures.note("late writes that failed, of 2", late_failed as f64);
    context.figures.at_least("Aborts that QEMU got for them", aborts(&session)?, 1)?;

    let before = resets(&mut session);
    limit(&mut session, "late", "bps-total", HANGING)?;
    session.tell("a", &format!("disk-many:late:{WRITES}"))?;
    let other = session.act("b", "disk-fill:prompt", seconds(240))?;
    ensure!(other["written"] == other["read"], "the other disk meanwhile: {other}");
    let said = session.result("a", "disk-many", seconds(240))?;
    let failed = number(&said, "failed")?;
    let figures = &mut context.figures;
    figures.at_least("hanging writes that failed", failed, 1)?;
    let after = resets(&mut session);
    context.figures.at_least("resets of the controller", after - before, 1)?;
    let counters = session.counters()?;
    let figures = &mut context.figures;
    figures.exactly(
        "I/O errors that guest a got",
        disk(&counters, "a", "late")?.count("errors"),
        late_failed + failed,
    )?;
    figures.exactly("I/O errors that guest b got", disk(&counters, "b", "prompt")?.count("errors"), 0)?;

    limit(&mut session, "late", "bps-total", 0)?;
    let filled = session.act("a", "disk-fill:late", seconds(240))?;
    ensure!(filled["written"] == filled["read"], "afterwards: {filled}");
    session.shut_down()?;
    for (serial, said) in [("late", &filled), ("prompt", &other)] {
        let found = checksum(&session.file(serial)?);
        ensure!(said["written"] == found.as_str(), "the file of {serial} has {found}; the guest wrote {said}");
    }
    Ok(())
}

/// Limits a disk of [`Setup::throttled`](crate::setup::Setup::throttled) to so many bytes a second. 0: no limit. `what`: QEMU's
/// name of what is limited, `bps-total` or `bps-write`.
pub fn limit(session: &mut Session, serial: &str, what: &str, bytes: u64) -> Result<()> {
    let path = format!("/objects/slow-{serial}");
    let limits = json!({ "path": path, "property": "limits", "value": { what: bytes } });
    session.monitor("qom-set", &limits).map(drop)
}

/// Abort commands that QEMU's controllers have got.
fn aborts(session: &Session) -> Result<usize> {
    let text = String::from_utf8_lossy(&session.file("emulator")?).into_owned();
    Ok(text.lines().filter(|line| line.contains("pci_nvme_admin_cmd") && line.contains("ABORT")).count())
}

/// Resets that sidecore has logged.
fn resets(session: &mut Session) -> usize {
    let is =
        |event: &&Event| matches!(event, Event::Log { text, .. } if text.contains("the controller is reset because"));
    session.unread().iter().filter(is).count()
}
