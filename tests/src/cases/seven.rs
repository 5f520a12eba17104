//! Seven guests of one engine on seven partitions of one NVMe disk, all writing at the same time.

use anyhow::{Context as _, Result, ensure};

use super::partitions::{place, unchanged_around};
use crate::boot::{Boot, alone};
use crate::counts::disk;
use crate::guests::{Guest, server, with_tools};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, guest_result, number};
use crate::setup::{Damage, Nvme, Table};

/// The disk.
const DISK: Nvme = Nvme { serial: "seven", mib: 16, block_bytes: 512 };
/// Its partitions.
const TABLE: Table = Table {
    disk: DISK.serial,
    partitions: &[("one", 2), ("two", 2), ("three", 2), ("four", 2), ("five", 2), ("six", 2), ("seven", 2)],
    damage: Damage::None,
};
/// Bytes of the blocks in which a partition is looked at: the smallest request of fio.
const BLOCK: usize = 4096;
/// Bytes at the beginning of a request that fio takes for its header, at most.
const HEADER: usize = 64;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "seven guests of one engine on seven partitions of an NVMe disk: fio writes and verifies in all of them at the \
                 same time; in the disk's file each partition has its guest's pattern, and nothing else has changed";
    vec![alone(Scenario::new("block-seven", about, QEMU).taking_turns(), seven)]
}

/// The byte that guest number `n`, from 0, writes.
const fn pattern(n: usize) -> u8 {
    0x11 * (n as u8 + 1)
}

fn seven(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let modes = ["eli", "direct"];
    let guests: Vec<Guest> = TABLE
        .partitions
        .iter()
        .enumerate()
        .map(|(n, (partition, _))| {
            let lines = format!("disk = \"nvme:{}\"\npartition = \"{partition}\"\nserial = \"data\"\n", DISK.serial);
            let guest = Guest::new(n + 1).requests("poll").completion(modes[n % modes.len()]);
            guest.with_tools().machine_disk(&lines).then("obey")
        })
        .collect();
    let mut setup = with_tools(server("block-seven", &guests));
    setup.nvme = vec![DISK];
    setup.tables = vec![TABLE];
    // The memory of the driver's queues.
    setup.memory_mib += 16;
    let names: Vec<&str> = guests.iter().map(Guest::name).collect();
    let mut session = context.boot(&setup)?;
    session.all_obey(names.iter().copied())?;

    for (n, name) in names.iter().enumerate() {
        session.act(name, &format!("fio-on:data:{:#04x}", pattern(n)), seconds(120))?;
    }
    // None of them stops before it is told to. So once each has written, all are writing.
    let writing = all_write(&mut session, &names)?;
    context.figures.exactly("guests that write at the same time", writing, names.len())?;
    for name in &names {
        session.tell(name, "")?;
    }
    let mut rounds = Vec::new();
    for name in &names {
        let said = session.result(name, "fio-on", seconds(240))?;
        rounds.push(number(&said, "rounds")?);
    }
    let counters = session.counters()?;
    let figures = &mut context.figures;
    figures.at_least("times that each guest verified its partition", rounds.iter().min().copied().unwrap_or(0), 1)?;
    for (name, (partition, mib)) in names.iter().zip(TABLE.partitions) {
        let device = disk(&counters, name, "data")?;
        let bad = device.count("errors") + device.count("unsupported") + device.ring_errors;
        figures.exactly(&format!("requests of {name} that failed"), bad, 0)?;
        figures.at_least(&format!("bytes written to {partition}"), device.count("written_bytes"), mib << 20)?;
    }
    session.shut_down()?;

    let file = session.file(DISK.serial)?;
    let mut places = Vec::new();
    for (n, (partition, _)) in TABLE.partitions.iter().enumerate() {
        let place = place(&TABLE, partition)?;
        for (block, bytes) in file[place.clone()].chunks(BLOCK).enumerate() {
            let other = bytes[HEADER..].iter().find(|byte| **byte != pattern(n));
            ensure!(other.is_none(), "block {block} of {partition} has {other:02x?}; expected {:#04x}", pattern(n));
        }
        places.push(place);
    }
    context.figures.note(
        "bytes of the disk that have their guest's pattern",
        places.iter().map(|p| p.len()).sum::<usize>() as f64,
    );
    unchanged_around(context, &session, DISK.serial, &places)
}

/// Waits until each guest has written. Returns how many have. A guest that ends before is an error.
fn all_write(session: &mut Session, names: &[&str]) -> Result<usize> {
    let begun = std::time::Instant::now();
    loop {
        let counters = session.counters()?;
        let mut writing = 0;
        for name in names {
            writing += usize::from(disk(&counters, name, "data").context("its disk")?.count("writes") != 0);
        }
        let ended = session.unread().iter().filter_map(guest_result).find(|(_, said)| said["do"] == "fio-on");
        ensure!(ended.is_none(), "a guest has stopped by itself: {ended:?}");
        if writing == names.len() || begun.elapsed() > seconds(480) {
            return Ok(writing);
        }
    }
}
