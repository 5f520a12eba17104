//! Errors beneath NVMe disks, which QEMU's blkdebug injects, as Linux's virtio_blk sees them.

use anyhow::{Result, ensure};
use control::{Command, Counters, Event, GuestState};

use crate::boot::{Boot, alone};
use crate::counts::disk;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Failing, Fault, Nvme};

/// A disk with bad sectors, and two that fail flushes.
const DISKS: [&str; 3] = ["sectors", "one-flush", "flushes"];
/// The bad places of the first disk in KiB. The second of each pair fails once.
const READS: [u64; 2] = [1024, 2048];
const WRITES: [u64; 2] = [3072, 4096];

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "reads, writes and flushes that fail beneath a disk, once and always: Linux gets an I/O error for each and \
                 goes on; one report a disk; after a failed flush all fail until the guest restarts";
    vec![alone(Scenario::new("block-nvme-faults", about, QEMU).taking_turns(), faults)]
}

/// One request of 4 KiB. Returns whether it failed.
fn once(session: &mut Session, serial: &str, what: &str) -> Result<bool> {
    Ok(number(&session.act("a", &format!("disk-once:{serial}:{what}"), seconds(60))?, "failed")? == 1)
}

/// A count of a disk of guest a.
fn count(counters: &Counters, serial: &str, kind: &str) -> Result<u64> {
    Ok(disk(counters, "a", serial)?.count(kind))
}

fn faults(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = DISKS.iter().fold(Guest::new(1), |guest, serial| {
        guest.machine_disk(&format!("disk = \"nvme:{serial}\"\nserial = \"{serial}\"\n"))
    });
    let mut setup = server("block-nvme-faults", &[guest.then("obey")]);
    setup.nvme = DISKS.map(|serial| Nvme { serial, mib: 8, block_bytes: 4096 }).to_vec();
    setup.memory_mib += 32;
    let sector = |what, [always, once]: [u64; 2]| {
        [(always, false), (once, true)].map(|(kib, once)| Fault { serial: DISKS[0], what, sector: Some(2 * kib), once })
    };
    let flush = |serial, once| Fault { serial, what: Failing::Flushes, sector: None, once };
    setup.faults = [sector(Failing::Reads, READS), sector(Failing::Writes, WRITES)].concat();
    setup.faults.extend([flush(DISKS[1], true), flush(DISKS[2], false)]);
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;

    let mut failed = 0;
    for (operation, [always, one]) in [("read", READS), ("write", WRITES)] {
        for (kib, expected) in [(always, [true, true]), (one, [true, false]), (0, [false, false])] {
            for (turn, expected) in (1..).zip(expected) {
                let is = once(&mut session, DISKS[0], &format!("{operation}:{kib}"))?;
                ensure!(is == expected, "{operation} number {turn} at {kib} KiB: failed is {is}");
                failed += u64::from(is);
            }
        }
    }
    let counters = session.counters()?;
    context.figures.exactly("requests that QEMU failed", count(&counters, DISKS[0], "storage_errors")?, failed)?;
    context.figures.exactly("I/O errors that the guest got", count(&counters, DISKS[0], "errors")?, failed)?;
    context.figures.exactly("reports about them", reports(&mut session, DISKS[0]), 1)?;

    for serial in &DISKS[1..] {
        let sync = format!("write:{}:sync", 64);
        ensure!(once(&mut session, serial, &sync)?, "{serial}: the first flush did not fail");
        ensure!(once(&mut session, serial, &sync)?, "{serial}: the second flush did not fail");
        ensure!(!once(&mut session, serial, "write:128")?, "{serial}: a write failed");
        ensure!(!once(&mut session, serial, "read:64")?, "{serial}: a read failed");
        let counters = session.counters()?;
        context.figures.exactly(
            &format!("flushes that QEMU failed, {serial}"),
            count(&counters, serial, "storage_errors")?,
            1,
        )?;
        context.figures.exactly("flushes refused after that", count(&counters, serial, "flushes_refused")?, 1)?;
        context.figures.exactly("reports about them", reports(&mut session, serial), 1)?;
    }
    // The guest's new driver resets the devices.
    session.act("a", "reboot", seconds(60))?;
    session.state("a", GuestState::Stopped, seconds(60))?;
    session.ask(Command::Start("a".to_owned()), seconds(20))?;
    session.result("a", "obey", seconds(120))?;
    ensure!(!once(&mut session, DISKS[1], "write:64:sync")?, "a flush fails although QEMU failed only the first");
    ensure!(once(&mut session, DISKS[2], "write:64:sync")?, "QEMU fails every flush, and this one succeeded");
    session.shut_down().map(drop)
}

/// Log lines about failed requests of a disk.
fn reports(session: &mut Session, serial: &str) -> usize {
    let words = format!("disk {serial} has failed a request");
    session.unread().iter().filter(|event| matches!(event, Event::Log { text, .. } if text.contains(&words))).count()
}
