//! Block devices over NVMe disks: QEMU's model of NVMe beneath, Linux's virtio_blk above. What the guest wrote is in
//! the files on the development machine.

use anyhow::{Result, ensure};
use control::{Command, Event};
use sha2::{Digest as _, Sha256};

use super::block::grown;
use crate::boot::{Boot, alone};
use crate::costs::Costs;
use crate::counts::disk;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::Nvme;

/// MiB of each disk.
const MIB: u64 = 8;
/// Bytes of a read when the guest reads with the least read-ahead: a page.
const PAGE: u64 = 4096;
/// The disks: blocks of both sizes that guests can have.
const DISKS: [Nvme; 2] = [
    Nvme { serial: "disk-512", mib: MIB, block_bytes: 512 },
    Nvme { serial: "disk-4096", mib: MIB, block_bytes: 4096 },
];

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "whole NVMe disks of both block sizes written, read again in pages without an exit for I/O, and \
                 discarded by Linux; what was written is in the disks' files";
    vec![alone(Scenario::new("block-nvme", about, QEMU), whole_disks)]
}

fn whole_disks(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let names = DISKS.map(|disk| format!("disk = \"nvme:{}\"\n", disk.serial));
    let guest = names.iter().zip(DISKS).fold(Guest::new(1), |guest, (line, disk)| {
        guest.machine_disk(&format!("{line}serial = \"{}\"\npacked = true\n", disk.serial))
    });
    let mut setup = server("block-nvme", &[guest.then("obey")]);
    setup.nvme = DISKS.to_vec();
    // The memory of the driver's queues.
    setup.memory_mib += 16;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    for line in &names {
        session.ask(Command::Report, seconds(20))?;
        session.wait(&format!("the report of a disk with {line}"), seconds(20), |event| {
            matches!(event, Event::Report(entry) if entry.text.contains(line.trim())).then_some(())
        })?;
    }
    let mut sums = Vec::new();
    for disk in DISKS {
        sums.push(written_and_read(context, &mut session, disk.serial)?);
    }
    // Discarded, then written again.
    let [Nvme { serial, .. }, _] = DISKS;
    let before = session.counters()?;
    let discarded = session.act("a", &format!("disk-discard:{serial}"), seconds(120))?;
    context.figures.exactly("bytes of a discarded disk that are not zero", number(&discarded, "left")?, 0)?;
    let discarding = [before, session.counters()?];
    let bytes = grown(&discarding, "a", serial, "unmapped_bytes")?;
    context.figures.at_least("bytes discarded", bytes, MIB << 20)?;
    let filled = session.act("a", &format!("disk-fill:{serial}"), seconds(240))?;
    ensure!(filled["read"] == sums[0].as_str(), "{filled}");

    let end = session.counters()?;
    for Nvme { serial, .. } in DISKS {
        let device = disk(&end, "a", serial)?;
        let bad = device.count("errors") + device.count("unsupported") + device.ring_errors;
        context.figures.exactly(&format!("requests of {serial} that failed"), bad, 0)?;
    }
    session.shut_down()?;
    let console = session.console()?;
    ensure!(!console.contains("was not shut down in time"), "{console}");
    for (Nvme { serial, .. }, sum) in DISKS.iter().zip(&sums) {
        let bytes = session.file(serial)?;
        context.figures.exactly(&format!("bytes in the file of {serial}"), bytes.len() as u64, MIB << 20)?;
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(found == *sum, "the file of {serial} has the checksum {found}, the guest wrote {sum}");
    }
    Ok(())
}

/// Guest a writes a whole disk, reads it, and reads it in pages. Returns the checksum of what it wrote.
fn written_and_read(context: &mut Context<'_>, session: &mut Session, serial: &str) -> Result<String> {
    let start = session.counters()?;
    let filled = session.act("a", &format!("disk-fill:{serial}"), seconds(240))?;
    let written = session.counters()?;
    ensure!(filled["written"] == filled["read"], "what was read is not what was written: {filled}");
    let read = session.act("a", &format!("disk-read:{serial}:4"), seconds(240))?;
    let paged = session.counters()?;
    ensure!(read["sha256"] == filled["written"], "what was read in pages is not what was written: {read}");

    let figures = &mut context.figures;
    let all = MIB << 20;
    figures.exactly(&format!("bytes of {serial} written and read"), number(&filled, "bytes")?, all)?;
    let writing = [start, written.clone()];
    figures.at_least(&format!("bytes of writes to {serial}"), grown(&writing, "a", serial, "written_bytes")?, all)?;
    figures.at_least(&format!("flushes of {serial}"), grown(&writing, "a", serial, "flushes")?, 1)?;
    let reading = [written, paged];
    figures.at_least(&format!("reads of a page of {serial}"), grown(&reading, "a", serial, "reads")?, all / PAGE)?;
    let costs = Costs::between(&reading, "a")?;
    let [before, after] = [&reading[0], &reading[1]].map(|reading| disk(reading, "a", serial));
    let (before, after) = (before?, after?);
    figures.exactly(&format!("notifications of {serial} meanwhile"), after.kicks - before.kicks, 0)?;
    figures.exactly("exits for I/O meanwhile", costs.io_exits(), 0)?;
    figures.at_least("interrupts meanwhile", after.interrupts - before.interrupts, 1)?;
    Ok(filled["written"].as_str().unwrap_or_default().to_owned())
}
