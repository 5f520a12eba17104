//! Power cuts. QEMU logs all writes to an NVMe disk. A guest writes numbered blocks, and says what it was told to be flushed.
//! The log is replayed to many points at which the power could have been cut, each time without some of the writes that
//! were not flushed. What the guest was told before is on each of these disks.

use anyhow::{Result, ensure};
use fastrand::Rng;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{guest_result, number};
use crate::setup::Nvme;
use crate::write_log::{Entry, Kind, LOG_SECTOR, WriteLog};

/// The disk.
const DISK: Nvme = Nvme { serial: "cut", mib: 8, block_bytes: 512 };
/// Bytes of a numbered block.
const BLOCK: usize = 4096;
/// Times that the guest writes blocks and has them flushed.
const BATCHES: u64 = 60;
/// Cuts of a log.
const CUTS: usize = 100;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "the power is cut at 100 points of a log of all writes to an NVMe disk: what the guest was told to be flushed \
                 is there; with a hypervisor that loses flushes it is not";
    vec![alone(Scenario::new("block-power-cut", about, QEMU).taking_turns(), power_cut)]
}

fn power_cut(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let outcome = written_and_cut(context, false)?;
    let figures = &mut context.figures;
    figures.at_least("blocks written", outcome.blocks, BATCHES)?;
    figures.at_least("writes lost in all cuts", outcome.lost, 1)?;
    figures.at_least("blocks that had to be there, in all cuts", outcome.wanted, CUTS)?;
    figures.exactly("cuts after which one of them was missing", outcome.failed, 0)?;
    let outcome = written_and_cut(context, true)?;
    let figures = &mut context.figures;
    figures.at_least("cuts after which one was missing, if flushes get lost", outcome.failed, 1)
}

/// The result of all cuts of one log.
#[derive(Debug, Default)]
struct Outcome {
    /// Blocks that the guest wrote.
    blocks: u64,
    /// Writes that were left out, blocks that had to be there, and cuts after which one was missing.
    lost: usize,
    wanted: u64,
    failed: usize,
}

/// Lets a guest write, and cuts the log. `loses_flushes`: the hypervisor is built to complete flushes without doing them.
fn written_and_cut(context: &mut Context<'_>, loses_flushes: bool) -> Result<Outcome> {
    let name = if loses_flushes { "block-power-cut-lost" } else { "block-power-cut" };
    let guest = Guest::new(1).full().machine_disk(&format!("disk = \"nvme:{}\"\nserial = \"data\"\n", DISK.serial));
    let mut setup = server(name, &[guest.then("obey")]);
    setup.nvme = vec![DISK];
    setup.logged = vec![DISK.serial];
    setup.feature = loses_flushes.then_some("lose-flushes");
    // The memory of the driver's queues.
    setup.memory_mib += 16;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    let said = session.act("a", &format!("ledger:data:{BATCHES}"), seconds(240))?;
    let told = session.unread().iter().filter_map(guest_result).filter(|(_, said)| said["do"] == "told");
    let told: Vec<u64> = told.map(|(_, said)| number(&said, "block")).collect::<Result<_>>()?;
    ensure!(told.len() as u64 == BATCHES, "the guest was told {} times", told.len());
    session.shut_down()?;
    let bytes = session.file(&format!("{}.log", DISK.serial))?;
    let log = WriteLog::read(&bytes, LOG_SECTOR)?;
    let mut outcome = cuts(&log, &told)?;
    outcome.blocks = number(&said, "blocks")?;
    Ok(outcome)
}

/// Cuts the power at many points of a log. `told`: the last block that was flushed, each time that the guest was told so.
fn cuts(log: &WriteLog<'_>, told: &[u64]) -> Result<Outcome> {
    let mut random = Rng::with_seed(18);
    let numbered = |entry: &Entry| numbers(log, entry).max();
    let last = log.entries().iter().rposition(|entry| numbered(entry).is_some()).map_or(0, |last| last + 1);
    ensure!(last > told.len(), "the log has {last} entries up to the last block");
    let mut outcome = Outcome::default();
    for n in 0..CUTS {
        let cut = log.cut(1 + n * last / CUTS, &mut random);
        // The guest writes a block only when it has been told of all batches before.
        let begun = log.entries()[..cut.entries].iter().filter_map(numbered).max().unwrap_or(0);
        let wanted = told.iter().copied().filter(|block| *block < begun).max().unwrap_or(0);
        let disk = log.disk_after(&cut, (DISK.mib << 20) as usize)?;
        let there =
            |block: &u64| disk.chunks(BLOCK).nth(*block as usize).is_some_and(|found| found == contents(*block));
        outcome.failed += usize::from(!(1..=wanted).all(|block| there(&block)));
        outcome.wanted += wanted;
        outcome.lost += cut.lost.len();
    }
    Ok(outcome)
}

/// The numbered blocks that a request wrote.
fn numbers<'l>(log: &'l WriteLog<'_>, entry: &Entry) -> impl Iterator<Item = u64> + use<'l> {
    let written = matches!(entry.kind, Kind::Write { .. }) && entry.at.is_multiple_of(BLOCK as u64);
    let first = entry.at / BLOCK as u64;
    let data = if written { log.data(entry) } else { &[] };
    (first..).zip(data.chunks(BLOCK)).filter(|(block, data)| *data == contents(*block)).map(|(block, _)| block)
}

/// The contents of a block: its number, a line each time.
fn contents(block: u64) -> Vec<u8> {
    format!("{block}\n").bytes().cycle().take(BLOCK).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of `count` blocks, with a flush behind each third if `flushes`.
    fn log(count: u64, flushes: bool) -> Vec<u8> {
        let mut bytes = vec![0; LOG_SECTOR];
        let mut entry = |first: u64, data: &[u8], flags: u64| {
            let mut header = [first, (data.len() / LOG_SECTOR) as u64, flags, 0].map(u64::to_le_bytes).concat();
            header.resize(LOG_SECTOR, 0);
            bytes.extend(header);
            bytes.extend(data);
        };
        for block in 1..=count {
            entry(block * (BLOCK / LOG_SECTOR) as u64, &contents(block), 0);
            if flushes && block % 3 == 0 {
                entry(0, &[], 1);
            }
        }
        bytes
    }

    #[test]
    fn what_was_told_is_there_after_each_cut_only_if_flushes_are_done() {
        let told: Vec<u64> = (1..=20).map(|batch| batch * 3).collect();
        let [done, lost] = [true, false].map(|flushes| log(60, flushes));
        let outcome = cuts(&WriteLog::read(&done, LOG_SECTOR).unwrap(), &told).unwrap();
        assert!(outcome.failed == 0 && outcome.lost > 0 && outcome.wanted > 1000, "{outcome:?}");
        let outcome = cuts(&WriteLog::read(&lost, LOG_SECTOR).unwrap(), &told).unwrap();
        assert!(outcome.failed > CUTS / 2, "{outcome:?}");
    }
}
