//! An NVMe disk that does not answer, and a guest that is killed meanwhile.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event, GuestState, StopReason};

use super::nvme_late::limit;
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::number;
use crate::setup::Nvme;

/// The disk.
const DISK: &str = "hangs";
/// Bytes a second that are written to it. A first write of 4 KiB is done at once, and the next one hangs for a minute.
const WRITTEN: u64 = 64;
/// Pings between the other guests while the disk hangs.
const PINGS: u64 = 100;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest is killed while its disk does not answer: the command, the list of guests and the other guests go \
                 on; the guest is `detaching`, with the disk's name, and its next life begins when the disk has answered";
    vec![alone(Scenario::new("block-nvme-hangs", about, QEMU).taking_turns(), hangs)]
}

fn hangs(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let disk = format!("disk = \"nvme:{DISK}\"\nserial = \"{DISK}\"\n");
    let guests = [
        Guest::new(1).machine_disk(&disk).then("obey"),
        Guest::new(2).peer(3).then("obey"),
        Guest::new(3).then("obey"),
    ];
    let mut setup = server("block-nvme-hangs", &guests);
    setup.nvme = vec![Nvme { serial: DISK, mib: 8, block_bytes: 4096 }];
    setup.throttled = vec![DISK];
    setup.memory_mib += 16;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a", "b", "c"])?;
    limit(&mut session, DISK, "bps-write", WRITTEN)?;

    let first = session.act("a", &format!("disk-once:{DISK}:write:64"), seconds(60))?;
    ensure!(number(&first, "failed")? == 0, "the first write failed");
    // The second does not end.
    session.tell("a", &format!("disk-once:{DISK}:write:128"))?;
    session.act("b", "ping:20", seconds(60))?;
    session.ask(Command::Kill("a".to_owned()), seconds(20))?;
    let detail = session.wait("guest a to be detaching", seconds(60), |event| match event {
        Event::Guest { guest, state: GuestState::Detaching, detail, .. } if guest == "a" => Some(detail.clone()),
        _ => None,
    })?;
    let detail = detail.unwrap_or_default();
    ensure!(detail.contains(&format!("disk {DISK}")), "the event does not name the disk: {detail}");
    let ping = session.act("b", &format!("ping:{PINGS}"), seconds(60))?;
    context.figures.exactly("pings answered while the disk hangs", number(&ping, "received")?, PINGS)?;
    ensure!(session.guest("a")?.state == GuestState::Detaching, "guest a is not `detaching` in the list");
    let refused = session.ask(Command::Start("a".to_owned()), seconds(20)).err().context("it was started")?;
    ensure!(refused.to_string().contains("requests in flight"), "the refusal does not say why: {refused}");

    session.ask(Command::Restart("a".to_owned()), seconds(20))?;
    ensure!(session.guest("a")?.state == GuestState::Detaching, "guest a did not wait for its disk");
    let reason = session.state("a", GuestState::Stopped, seconds(120))?;
    ensure!(reason == Some(StopReason::Killed), "guest a stopped for {reason:?}");
    session.result("a", "obey", seconds(120))?;
    session.shut_down().map(drop)
}
