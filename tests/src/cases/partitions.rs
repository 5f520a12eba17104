//! Partitions of NVMe disks as guests' disks: each guest reaches its own blocks and no other. What is on the disks is in
//! their files on the development machine, before and afterwards.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event};

use super::block::checksum;
use crate::boot::{Boot, alone};
use crate::counts::disk as counted;
use crate::guests::{Guest, config_text, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Content, Damage, Nvme, Table};

/// MiB of each disk.
const MIB: u64 = 16;
/// MiB before the first partition.
const FIRST: u64 = 1;
/// The disks.
const DISKS: [Nvme; 3] = [
    Nvme { serial: "parts", mib: MIB, block_bytes: 512 },
    Nvme { serial: "hurt", mib: MIB, block_bytes: 4096 },
    Nvme { serial: "lost", mib: MIB, block_bytes: 512 },
];
/// Their partitions: names and MiB.
const TABLES: [Table; 3] = [
    Table { disk: "parts", partitions: &[("one", 4), ("two", 3), ("three", 4)], damage: Damage::None },
    Table { disk: "hurt", partitions: &[("free", 2), ("four", 4)], damage: Damage::Primary },
    Table { disk: "lost", partitions: &[("five", 4)], damage: Damage::Both },
];
/// What guests write: the guest, the serial number of its device, disk and partition.
const WRITTEN: [(&str, &str, &str, &str); 4] = [
    ("a", "disk", "parts", "one"),
    ("b", "disk", "parts", "two"),
    ("c", "disk", "parts", "three"),
    ("c", "more", "hurt", "four"),
];

/// What is wiped: as above.
const WIPED: (&str, &str, &str, &str) = ("b", "clean", "hurt", "free");

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "three guests on three partitions of a disk, and one on a disk whose primary table is damaged, write and \
                 read all of their blocks, in blocks of 512 bytes on 4,096 too; one is wiped; nothing else on the disks changes; \
                 with both tables damaged a guest stays out";
    vec![alone(Scenario::new("block-partitions", about, QEMU).taking_turns(), partitions)]
}

fn partitions(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let device = |disk: &str, partition: &str, serial: &str| {
        format!("disk = \"nvme:{disk}\"\npartition = \"{partition}\"\nserial = \"{serial}\"\n")
    };
    let guests: Vec<Guest> = ["a", "b", "c"]
        .into_iter()
        .zip(1..)
        .map(|(name, number)| {
            let of_guest = WRITTEN.iter().filter(|(guest, ..)| *guest == name);
            let guest = of_guest.fold(Guest::new(number), |guest, (_, serial, disk, partition)| {
                let emulate = if *disk == "hurt" { "emulate = true\n" } else { "" };
                guest.machine_disk(&format!("{}{emulate}", device(disk, partition, serial)))
            });
            let (of, serial, disk, partition) = WIPED;
            let wiped = format!("{}wipe = true\n", device(disk, partition, serial));
            let guest = if of == name { guest.machine_disk(&wiped) } else { guest };
            guest.then("obey")
        })
        .collect();
    let out = Guest::new(4).machine_disk(&device("lost", "five", "disk")).then("obey");
    // The last one does not run, so there are cores and memory for three.
    let mut setup = server("block-partitions", &guests);
    let all: Vec<Guest> = guests.into_iter().chain([out]).collect();
    let config = config_text(&all);
    setup.modules[0].content = Content::Text(config.clone());
    setup.nvme = DISKS.to_vec();
    setup.tables = TABLES.to_vec();
    // The memory of the driver's queues.
    setup.memory_mib += 24;
    let mut session = context.boot(&setup)?;

    let (line, message) = session.wait("the mistake of guest d", seconds(60), |event| match event {
        Event::ConfigError { guest: Some(guest), line, message, .. } if guest == "d" => Some((*line, message.clone())),
        _ => None,
    })?;
    let expected = "no partition is taken from this disk: both copies of its partition table are damaged: the primary:";
    ensure!(message.starts_with(expected), "guest d: {message:?}");
    let at = config.lines().position(|line| line == "partition = \"five\"").map_or(0, |line| line + 1);
    context.figures.exactly("line of d's mistake", line, at as f64)?;
    session.all_obey(["a", "b", "c"])?;
    context.figures.exactly("guests that run", session.running()?, 3)?;
    session.ask(Command::Report, seconds(20))?;
    for words in ["the primary copy of its partition table is damaged", "4 MiB: partition = \"four\""] {
        session.wait(&format!("the report of {words}"), seconds(20), |event| {
            matches!(event, Event::Report(entry) if entry.text.contains(words)).then_some(())
        })?;
    }

    let mut sums = Vec::new();
    let (guest, serial, disk, partition) = WIPED;
    let read = session.act(guest, &format!("disk-read:{serial}"), seconds(240))?;
    let place = place_of(disk, partition)?;
    let zeroes = checksum(&vec![0; place.len()]);
    ensure!(read["sha256"] == zeroes.as_str(), "what was wiped is not zero: {read}");
    sums.push((disk, partition, place, zeroes));
    for (guest, serial, disk, partition) in WRITTEN {
        let filled = session.act(guest, &format!("disk-fill:{serial}"), seconds(240))?;
        ensure!(filled["written"] == filled["read"], "{disk}/{partition}: {filled}");
        let place = place_of(disk, partition)?;
        context.figures.exactly(&format!("bytes of {partition}"), number(&filled, "bytes")?, place.len() as f64)?;
        sums.push((disk, partition, place, filled["written"].as_str().unwrap_or_default().to_owned()));
    }
    // After all have written, each still has its own.
    for ((guest, serial, ..), (_, partition, _, sum)) in WRITTEN.iter().zip(&sums[1..]) {
        let read = session.act(guest, &format!("disk-read:{serial}"), seconds(240))?;
        ensure!(read["sha256"] == sum.as_str(), "{partition}: {read}, written: {sum}");
    }
    // Blocks of 512 bytes on 4,096: a file system with blocks of 1 KiB, and the sectors that it leaves as they are.
    let before = counted(&session.counters()?, "c", "more")?;
    let made = session.act("c", "disk-fs:more:make", seconds(120))?;
    let found = session.act("c", "disk-fs:more:check", seconds(60))?;
    ensure!(made["sha256"] == found["sha256"], "{made}, {found}");
    let after = counted(&session.counters()?, "c", "more")?;
    let figures = &mut context.figures;
    figures.at_least(
        "blocks that were written in part",
        after.count("partial_writes") - before.count("partial_writes"),
        1,
    )?;
    figures.exactly("requests that failed", after.count("errors") + after.count("unsupported"), 0)?;
    let last = session.act("c", "disk-fill:more", seconds(240))?;
    ensure!(last["read"] == sums[4].3.as_str(), "the same once more: {last}");
    session.shut_down()?;
    for Nvme { serial, .. } in DISKS {
        let of_disk = sums.iter().filter(|(disk, ..)| *disk == serial);
        let (before, after) = (session.file(&format!("{serial}.before"))?, session.file(serial)?);
        for (_, partition, place, sum) in of_disk.clone() {
            let found = checksum(&after[place.clone()]);
            ensure!(found == *sum, "{serial}/{partition} has the checksum {found}, the guest wrote {sum}");
            ensure!(before[place.clone()] != after[place.clone()], "{serial}/{partition} was not written");
        }
        let places: Vec<_> = of_disk.map(|(.., place, _)| place.clone()).collect();
        unchanged_around(context, &session, serial, &places)?;
    }
    Ok(())
}

/// The bytes of a partition of [`TABLES`] on its disk.
fn place_of(disk: &str, partition: &str) -> Result<Range<usize>> {
    place(TABLES.iter().find(|table| table.disk == disk).context("no such disk")?, partition)
}

/// The bytes of a partition on its disk.
pub fn place(table: &Table, partition: &str) -> Result<Range<usize>> {
    let mut start = FIRST;
    for (name, mib) in table.partitions {
        if *name == partition {
            return Ok((start << 20) as usize..((start + mib) << 20) as usize);
        }
        start += mib;
    }
    anyhow::bail!("{} has no partition {partition}", table.disk)
}

/// Compares a disk's file with its contents before: outside of its guests' partitions nothing has changed.
pub fn unchanged_around(
    context: &mut Context<'_>,
    session: &Session,
    disk: &str,
    partitions: &[Range<usize>],
) -> Result<()> {
    let mut before = session.file(&format!("{disk}.before"))?;
    let mut after = session.file(disk)?;
    ensure!(before.len() == after.len(), "{disk} had {} bytes and has {}", before.len(), after.len());
    for place in partitions {
        before[place.clone()].fill(0);
        after[place.clone()].fill(0);
    }
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    context.figures.exactly(&format!("bytes of {disk} outside its guests' partitions that changed"), changed as f64, 0)
}
