//! Block devices judged by programs that nobody here wrote: fio with CRC-32C, Debian's mke2fs, e2fsck and blkdiscard. And
//! a guest that is killed while it writes.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use control::{Command, Event, GuestState, StopReason};

use super::block::{checksum, grown};
use super::partitions::{place, unchanged_around};
use crate::boot::{Boot, Check, Shared, Wanted, alone};
use crate::costs::Costs;
use crate::counts::{disk, starts};
use crate::guests::{Guest, server, with_tools};
use crate::modes;
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, guest_result, number};
use crate::setup::{Damage, Nvme, Setup, Table};

/// MiB of each guest's disk.
const MIB: u32 = 8;
const BYTES: u64 = (MIB as u64) << 20;
/// Reads whose interrupts are counted, and how many are submitted together.
const READS: u64 = 4_096;
const DEPTH: u64 = 32;
/// Most interrupts for a request, with so many in flight.
const INTERRUPTS: f64 = 0.1;

/// Guests by number: modes of requests and of completion, and further lines of the disk's entry.
const GUESTS: [(&str, &str, &str); 3] =
    [("poll", "eli", "packed = true\nqueues = 2\n"), ("poll", "direct", ""), ("notify", "inject", "packed = true\n")];

/// How often a guest is killed while it writes: usually, and with `--full`.
const LIVES: u64 = 10;
const MANY_LIVES: u64 = 100;
/// Durable files in each life before the guest is killed.
const FILES: u64 = 8;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let check = |name, about, run| Check::new(Scenario::new(name, about, QEMU).taking_turns(), run);
    let killed = "a guest is killed while it writes files, ten times: its file system is whole, what it was told to be \
                  durable is there, and its neighbours' disks are as they were";
    let killed_nvme = "the same with two partitions of an NVMe disk: the neighbour's partition and all other blocks of the \
                       disk are as they were, in the disk's file";
    let nvme = "fio on NVMe disks: written in requests of mixed sizes, 32 in flight, and verified, in each mode";
    vec![
        Box::new(Shared {
            name: "fio",
            about: "a in `eli`, b in `direct`, both polled; c notifies, and its completions are injected",
            start,
            end: |mut session| session.shut_down().map(drop),
            checks: vec![
                check(
                    "block-fio",
                    "fio writes a whole disk in requests of mixed sizes, 32 in flight, and verifies it, in each mode",
                    verified as fn(&mut Context<'_>, &mut Session) -> Result<()>,
                ),
                check(
                    "block-ext4",
                    "Debian's mke2fs, e2fsck and blkdiscard on a disk: ext4 is clean, zeroes are zero",
                    file_system,
                ),
            ],
        }),
        alone(Scenario::new("block-fio-nvme", nvme, QEMU).taking_turns(), verified_nvme),
        alone(Scenario::new("block-killed", killed, QEMU).longer_on(QEMU).taking_turns(), killed_on_ram),
        alone(Scenario::new("block-killed-nvme", killed_nvme, QEMU).longer_on(QEMU).taking_turns(), killed_on_nvme),
    ]
}

/// A guest whose network device gets no commands while its disk's exits are counted.
fn still(number: usize) -> Guest {
    Guest::new(number).kernel_option("ipv6.disable=1")
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let numbers = if wanted.any(&["block-fio"]) { GUESTS.as_slice() } else { &GUESTS[..1] };
    let guests: Vec<Guest> = (1..)
        .zip(numbers)
        .map(|(number, (requests, completion, lines))| {
            let lines = format!("size = \"{MIB}M\"\nserial = \"data\"\n{lines}");
            still(number).requests(requests).completion(completion).with_tools().disk(MIB, &lines).then("obey")
        })
        .collect();
    let mut session = context.boot(&with_tools(server("fio", &guests)))?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

/// fio in each guest, one after another.
fn verified(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    for (name, (requests, completion, _)) in ["a", "b", "c"].into_iter().zip(GUESTS) {
        fio(context, session, name, [requests, completion])?;
        let of = |what: &str| format!("{requests}, {completion}: {what}");
        let said = session.act(name, &format!("fio-reads:data:{READS}:{DEPTH}"), seconds(240))?;
        let disk_requests = number(&said, "requests")?;
        let figures = &mut context.figures;
        figures.at_least(&of("reads of 4 KiB, 32 at a time"), disk_requests, READS)?;
        let interrupts = number(&said, "interrupts")? as f64 / disk_requests as f64;
        let name = of("interrupts for such a read");
        if modes::named(completion).exits {
            figures.note(&name, interrupts);
        } else {
            figures.at_most(&name, interrupts, INTERRUPTS)?;
        }
    }
    Ok(())
}

/// Has guest `name` write its disk by fio and verify it. `modes`: its requests and its completions.
fn fio(context: &mut Context<'_>, session: &mut Session, name: &str, modes: [&str; 2]) -> Result<()> {
    let of = |what: &str| format!("{}: {what}", modes.join(", "));
    let before = session.counters()?;
    let said = session.act(name, "fio:data", seconds(240))?;
    let after = session.counters()?;
    let both = [before, after.clone()];
    let figures = &mut context.figures;
    let wrote = number(&said, "written_kib")? << 10;
    figures.exactly(&of("bytes that fio wrote"), wrote, BYTES)?;
    figures.at_least(&of("bytes that fio verified"), number(&said, "read_kib")? << 10, BYTES)?;
    figures.at_least(&of("bytes of reads"), grown(&both, name, "data", "read_bytes")?, BYTES)?;
    figures.at_least(&of("bytes of writes"), grown(&both, name, "data", "written_bytes")?, BYTES)?;
    let device = disk(&after, name, "data")?;
    let bad = device.count("errors") + device.count("unsupported") + device.ring_errors;
    figures.exactly(&of("requests that failed"), bad, 0)?;
    let costs = Costs::between(&both, name)?;
    if modes::named(modes[1]).exits {
        figures.at_least(&of("exits for I/O"), costs.io_exits(), 1)?;
    } else {
        figures.exactly(&of("exits for I/O"), costs.io_exits(), 0)?;
    }
    let interrupts = number(&said, "interrupts")? as f64 / number(&said, "requests")? as f64;
    figures.note(&of("interrupts for a request"), interrupts);
    Ok(())
}

/// fio in each guest, each with an NVMe disk of its own.
fn verified_nvme(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    const DISKS: [&str; 3] = ["fio-a", "fio-b", "fio-c"];
    let guests: Vec<Guest> = (1..)
        .zip(GUESTS.iter().zip(DISKS))
        .map(|(number, ((requests, completion, _), serial))| {
            let lines = format!("disk = \"nvme:{serial}\"\nserial = \"data\"\n");
            still(number).requests(requests).completion(completion).with_tools().machine_disk(&lines).then("obey")
        })
        .collect();
    let mut setup = with_tools(server("block-fio-nvme", &guests));
    setup.nvme = DISKS.map(|serial| Nvme { serial, mib: MIB.into(), block_bytes: 512 }).to_vec();
    // The memory of the driver's queues.
    setup.memory_mib += 48;
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    for (guest, (requests, completion, _)) in guests.iter().zip(GUESTS) {
        fio(context, &mut session, guest.name(), [requests, completion])?;
    }
    session.shut_down().map(drop)
}

/// A file system of Debian's in guest a, and zeroes.
fn file_system(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let made = session.act("a", "ext4:data:make", seconds(120))?;
    context.figures.exactly("e2fsck's exit code", number(&made, "code")?, 0)?;
    let before = session.counters()?;
    let zeroed = session.act("a", "zeroes:data", seconds(120))?;
    let both = [before, session.counters()?];
    let figures = &mut context.figures;
    figures.exactly("bytes that are not zero then", number(&zeroed, "left")?, 0)?;
    figures.at_least("bytes that the device zeroed", grown(&both, "a", "data", "unmapped_bytes")?, BYTES)
}

/// The NVMe disk of `block-killed-nvme`, and its partitions.
const KILLED: Nvme = Nvme { serial: "killed", mib: 2 * MIB as u64 + 2, block_bytes: 512 };
const PARTITIONS: [(&str, u64); 2] = [("one", MIB as u64), ("two", MIB as u64)];

fn killed_on_ram(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let data = format!("size = \"{MIB}M\"\nserial = \"data\"\n");
    let guests = [1, 2].map(|number| writer(number).disk(MIB, &data));
    let setup = with_tools(server("block-killed", &guests));
    killed_in_a_write(context, &setup)?.0.shut_down().map(drop)
}

fn killed_on_nvme(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [(1, "one"), (2, "two")].map(|(number, partition)| {
        let lines = format!("disk = \"nvme:{}\"\npartition = \"{partition}\"\nserial = \"data\"\n", KILLED.serial);
        writer(number).machine_disk(&lines)
    });
    let table = Table { disk: KILLED.serial, partitions: &PARTITIONS, damage: Damage::None };
    let mut setup = with_tools(server("block-killed-nvme", &guests));
    setup.nvme = vec![KILLED];
    setup.tables = vec![table];
    // The memory of the driver's queues.
    setup.memory_mib += 16;
    let (mut session, written) = killed_in_a_write(context, &setup)?;
    session.shut_down()?;
    let [ours, theirs] = PARTITIONS.map(|(partition, _)| place(&table, partition));
    let theirs = theirs?;
    let found = checksum(&session.file(KILLED.serial)?[theirs.clone()]);
    ensure!(found == written, "b's partition has the checksum {found}, b wrote {written}");
    unchanged_around(context, &session, KILLED.serial, &[ours?, theirs])
}

/// A guest with the programs, and an overlay over a module.
fn writer(number: usize) -> Guest {
    let overlay = "module = \"initrd\"\noverlay = \"1M\"\nserial = \"base\"\n";
    Guest::new(number).with_tools().disk(1, overlay).then("obey")
}

/// Guest a is killed while it writes files, again and again. b has the same module beneath an overlay of its own, and wrote
/// its disk before. Returns the checksum of what b wrote.
fn killed_in_a_write(context: &mut Context<'_>, setup: &Setup) -> Result<(Session, String)> {
    let lives = if context.full { MANY_LIVES } else { LIVES };
    let mut session = context.boot(setup)?;
    session.all_obey(["a", "b"])?;
    let filled = session.act("b", "disk-fill:data", seconds(120))?;
    session.act("b", "disk-write:base:0:512", seconds(60))?;
    let base = session.act("b", "disk-read:base", seconds(120))?;
    session.act("a", "ext4:data:make", seconds(120))?;
    let (mut last, mut expected, mut intact, mut clean) = (0, 0, 0, 0);
    for _ in 0..lives {
        let first = last + 1;
        session.tell("a", &format!("churn:data:{first}"))?;
        last = last_durable(&mut session, first + FILES - 1)?;
        // Somewhere in the next file.
        thread::sleep(Duration::from_millis(7 * (last % 11)));
        session.ask(Command::Kill("a".to_owned()), seconds(30))?;
        let reason = session.state("a", GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Killed), "a stopped for {reason:?}");
        last = already_said(&mut session, last);
        // The answer comes when the guest has its kernel and its initial RAM disk, of 16 MiB.
        session.ask(Command::Start("a".to_owned()), seconds(240))?;
        session.result("a", "obey", seconds(120))?;
        let checked = session.act("a", "ext4:data:check", seconds(120))?;
        clean += u64::from(checked["code"] == 0);
        ensure!(checked["code"] == 0, "after file {last}: {checked}");
        let found = session.act("a", &format!("survey:data:{last}"), seconds(120))?;
        expected += number(&found, "expected")?;
        intact += number(&found, "intact")?;
        ensure!(found["expected"] == found["intact"], "after file {last}: {found}");
    }
    let read = session.act("b", "disk-read:data", seconds(120))?;
    ensure!(read["sha256"] == filled["written"], "b's disk was {filled}, and is {read}");
    let same = session.act("b", "disk-read:base", seconds(120))?;
    ensure!(same == base, "b's overlay was {base}, and is {same}");
    let counters = session.counters()?;
    let figures = &mut context.figures;
    figures.exactly("times that e2fsck found nothing", clean, lives)?;
    figures.at_least("durable files looked at", expected, lives * FILES)?;
    figures.exactly("of these intact", intact, expected)?;
    figures.exactly("lives of a", starts(&counters, "a"), lives + 1)?;
    figures.exactly("lives of b", starts(&counters, "b"), 1)?;
    for name in ["a", "b"] {
        let device = disk(&counters, name, "data")?;
        figures.exactly(&format!("requests of {name} that failed"), device.count("errors") + device.ring_errors, 0)?;
    }
    Ok((session, filled["written"].as_str().unwrap_or_default().to_owned()))
}

/// Waits until guest a was told that file `wanted` is durable. Returns the number of the last such file.
fn last_durable(session: &mut Session, wanted: u64) -> Result<u64> {
    session
        .wait(&format!("file {wanted} of guest a"), seconds(120), |event| durable(event).filter(|file| *file >= wanted))
}

/// The last durable file that guest a has reported among the events that nobody has waited for.
fn already_said(session: &mut Session, last: u64) -> u64 {
    session.unread().iter().filter_map(durable).fold(last, u64::max)
}

fn durable(event: &Event) -> Option<u64> {
    let (guest, said) = guest_result(event)?;
    (guest == "a" && said["do"] == "churn").then(|| said["file"].as_u64())?
}
