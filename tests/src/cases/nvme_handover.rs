//! The disks after sidecore: the same QEMU is reset into Debian's kernel, whose NVMe driver judges the controllers.
//!
//! QEMU's controller counts no unsafe shutdowns: its SMART has 0 there in every case. So the second witness is what the
//! controllers saw, by QEMU's trace events: the values of CC, and the queues that were deleted. A reset of QEMU resets the
//! controllers too, so a controller that hangs would not be seen here.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event};
use serde_json::Value;
use std::time::Instant;

use super::block::checksum;
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::Nvme;

/// MiB of each disk.
const MIB: u64 = 8;
/// The disk that a guest has, and one that no guest has.
const DISKS: [Nvme; 2] =
    [Nvme { serial: "used", mib: MIB, block_bytes: 4096 }, Nvme { serial: "unused", mib: MIB, block_bytes: 512 }];
/// Values of CC.SHN (NVMe Base 2.0, 3.1.3.5).
const NORMAL: u64 = 1;
const ABRUPT: u64 = 2;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "after `shutdown` the same machine is reset into Debian's kernel: its driver finds the disks without a \
                 complaint, nvme-cli no more unsafe shutdowns, and the guest's data is there";
    let panic = "the same after a panic with a guest's writes under way: the disks were told that power may go, and \
                 work";
    vec![
        alone(Scenario::new("disk-handover", about, QEMU).taking_turns(), orderly),
        alone(Scenario::new("disk-handover-panic", panic, QEMU).taking_turns(), panicked),
    ]
}

/// Boots a guest with a disk, and fills it. Returns what was written.
fn filled(context: &mut Context<'_>, name: &str, options: &'static str) -> Result<(Session, String)> {
    let guest = Guest::new(1).machine_disk("disk = \"nvme:used\"\nserial = \"used\"\n").then("obey");
    let mut setup = server(name, &[guest]);
    setup.nvme = DISKS.to_vec();
    setup.memory_mib += 16;
    // Nothing may end the emulator.
    setup.options = options;
    setup.after_reset = Some("controllers");
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    session.ask(Command::Report, seconds(20))?;
    for Nvme { serial, .. } in DISKS {
        session.wait(&format!("the report of {serial} without an unsafe shutdown"), seconds(20), |event| {
            let has = |text: &str| text.contains(&format!("serial {serial}")) && text.contains(" 0 unsafe shutdowns");
            matches!(event, Event::Report(entry) if has(&entry.text)).then_some(())
        })?;
    }
    let filled = session.act("a", "disk-fill:used", seconds(240))?;
    Ok((session, filled["written"].as_str().unwrap_or_default().to_owned()))
}

fn orderly(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (mut session, written) = filled(context, "disk-handover", "")?;
    session.shut_down_as_machine()?;
    session.off(seconds(60))?;
    ensure!(!session.console()?.contains("was not shut down in time"), "{}", session.console()?);
    let seen = seen(&session)?;
    context.figures.exactly("disks told of a normal shutdown", seen.normal, DISKS.len())?;
    context.figures.exactly("disks told of an abrupt one", seen.abrupt, 0)?;
    context.figures.exactly("I/O queues deleted", seen.deleted, DISKS.len())?;
    let judged = session.reset_into_linux("controllers", seconds(120))?;
    judge(context, &judged)?;
    let found = &disk(&judged, "used")?["namespaces"][0];
    ensure!(found["sha256"] == written.as_str(), "Linux reads {found}, the guest wrote {written}");
    ensure!(checksum(&session.file("used")?) == written, "the file of the disk is not what the guest wrote");
    Ok(())
}

fn panicked(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (mut session, _) = filled(context, "disk-handover-panic", "selftest=panic-at-shutdown")?;
    // Writes are under way when the panic comes.
    session.tell("a", "disk-fill:used")?;
    let writes =
        |session: &mut Session| crate::counts::disk(&session.counters()?, "a", "used").map(|d| d.count("writes"));
    let before = writes(&mut session)?;
    let begun = Instant::now();
    while writes(&mut session)? == before {
        ensure!(begun.elapsed() < seconds(120), "the guest does not write");
    }
    session.send(Command::Shutdown)?;
    let (message, ..) = session.panicked(seconds(60))?;
    ensure!(message.contains("selftest=panic-at-shutdown"), "{message}");
    // The message is sent before the machine stands still, and the disks are told before that.
    let seen = seen(&session)?;
    // The disk that no guest has was shut down at the start.
    context.figures.exactly("disks told of a normal shutdown", seen.normal, 1)?;
    context.figures.exactly("disks told of an abrupt one", seen.abrupt, 1)?;
    let judged = session.reset_into_linux("controllers", seconds(120))?;
    judge(context, &judged)
}

/// Checks what Linux says of the controllers after the reset.
fn judge(context: &mut Context<'_>, judged: &Value) -> Result<()> {
    let figures = &mut context.figures;
    figures.at_least("lines of Linux's log about NVMe", number(judged, "lines")?, DISKS.len() as u64)?;
    ensure!(judged["faults"] == 0, "Linux tells of faults, the first time: {}", judged["first"]);
    for Nvme { serial, mib, .. } in DISKS {
        let controller = disk(judged, serial)?;
        ensure!(controller["state"] == "live", "{controller}");
        let smart = &controller["smart"];
        figures.exactly(&format!("critical warnings of {serial}"), number(smart, "critical_warning")?, 0)?;
        figures.exactly(&format!("media errors of {serial}"), number(smart, "media_errors")?, 0)?;
        // QEMU's controller never counts them. Elsewhere a panic adds one.
        figures.exactly(&format!("unsafe shutdowns of {serial}"), number(smart, "unsafe_shutdowns")?, 0)?;
        let bytes = number(&controller["namespaces"][0], "bytes")?;
        figures.exactly(&format!("bytes of {serial}"), bytes, mib << 20)?;
    }
    Ok(())
}

/// A controller among those that Linux has found.
fn disk<'v>(judged: &'v Value, serial: &str) -> Result<&'v Value> {
    let all = judged["all"].as_array().context("no controllers")?;
    all.iter()
        .find(|one| one["serial"] == serial)
        .with_context(|| format!("Linux has no controller {serial}: {judged}"))
}

/// What QEMU saw of the controllers' end.
struct Seen {
    /// Times that a controller was told of a normal shutdown, and of an abrupt one.
    normal: usize,
    abrupt: usize,
    /// Submission queues that were deleted.
    deleted: usize,
}

/// Reads QEMU's trace events of both controllers.
fn seen(session: &Session) -> Result<Seen> {
    let text = String::from_utf8_lossy(&session.file("emulator")?).into_owned();
    let values = text.lines().filter(|line| line.contains("pci_nvme_mmio_cfg"));
    let values = values.filter_map(|line| u64::from_str_radix(line.rsplit_once("config=0x")?.1.trim(), 16).ok());
    let ends: Vec<u64> = values.map(|cc| cc >> 14 & 3).collect();
    ensure!(!ends.is_empty(), "QEMU saw no value of CC:\n{text}");
    let count = |shn| ends.iter().filter(|one| **one == shn).count();
    let deleted = text.lines().filter(|line| line.contains("pci_nvme_del_sq")).count();
    Ok(Seen { normal: count(NORMAL), abrupt: count(ABRUPT), deleted })
}
