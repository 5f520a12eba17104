//! Block devices over NVMe disks: QEMU's model of NVMe beneath, Linux's virtio_blk above. What the guest wrote is in
//! the files on the development machine.

use anyhow::{Result, ensure};
use control::{Command, Event};

use super::block::{checksum, grown};
use crate::boot::{Boot, alone};
use crate::costs::Costs;
use crate::counts::disk;
use crate::guests::{Guest, config_text, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Content, Nvme};

/// MiB of each disk.
pub(super) const MIB: u64 = 8;
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
    let named = "names of disks that mean none or several, and two writers of one: their guests stay out, with lines to \
                 paste; a guest with one of two namespaces reaches only that one";
    vec![
        alone(Scenario::new("block-nvme", about, QEMU), whole_disks),
        alone(Scenario::new("block-nvme-names", named, QEMU).taking_turns(), names),
    ]
}

fn whole_disks(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let serials = DISKS.map(|disk| disk.serial);
    let names = serials.map(|serial| format!("disk = \"nvme:{serial}\""));
    let guest = names.iter().zip(DISKS).fold(Guest::new(1), |guest, (line, disk)| {
        guest.machine_disk(&format!("{line}\nserial = \"{}\"\npacked = true\n", disk.serial))
    });
    // The same namespace once more, for reading only.
    let guest = guest.machine_disk(&format!("{}\nreadonly = true\nserial = \"fixed\"\n", names[0]));
    let mut setup = server("block-nvme", &[guest.then("obey")]);
    setup.nvme = DISKS.to_vec();
    // The memory of the driver's queues.
    setup.memory_mib += 16;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    let sums = all_written_and_read(context, &mut session, &names, &serials)?;
    let fixed = session.act("a", "disk-read:fixed", seconds(240))?;
    ensure!(fixed["sha256"] == sums[0].as_str(), "by the read-only device: {fixed}, written: {}", sums[0]);
    let refused = session.act("a", "disk-refuses:fixed", seconds(60))?;
    context.figures.exactly("writes to a read-only disk that failed", number(&refused, "refused")?, 1)?;
    discarded_and_filled(context, &mut session, serials[0], &sums[0])?;
    none_failed(context, &mut session, &serials)?;
    session.shut_down()?;
    let console = session.console()?;
    ensure!(!console.contains("was not shut down in time"), "{console}");
    files_are_written(context, &session, &serials, &sums)
}

/// What these guests' disks are, and what sidecore answers for those that stay out. `LINE` stands for the line of the
/// other guest's disk.
const NAMED: [(&str, Option<&str>); 6] = [
    ("nvme:two/2", None),
    (
        "nvme0",
        Some(
            "2 NVMe controllers are meant; expected one of: disk = \"nvme:alone\", disk = \"nvme:two/1\", disk = \"nvme:two/2\"",
        ),
    ),
    ("nvme:gone", Some("no NVMe controller is that one; there are: disk = \"nvme:alone\"")),
    ("nvme:two", Some("the controller has namespaces 1, 2; expected one of them behind a `/`")),
    ("nvme:alone", Some("guest `f` has some of these blocks too, in line LINE;")),
    ("nvme:alone/1", Some("guest `e` has some of these blocks too, in line LINE;")),
];

fn names(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = NAMED.iter().zip(1..).map(|((name, _), number)| {
        Guest::new(number).machine_disk(&format!("disk = \"{name}\"\nserial = \"disk\"\n")).then("obey")
    });
    let guests: Vec<Guest> = guests.collect();
    // Only a runs, so there are cores and memory for one.
    let mut setup = server("block-nvme-names", &guests[..1]);
    let config = config_text(&guests);
    setup.modules[0].content = Content::Text(config.clone());
    setup.nvme = vec![
        Nvme { serial: "alone", mib: MIB, block_bytes: 512 },
        Nvme { serial: "two", mib: MIB, block_bytes: 4096 },
        Nvme { serial: "two", mib: 2 * MIB, block_bytes: 512 },
    ];
    setup.memory_mib += 16;
    let mut session = context.boot(&setup)?;
    let line_of = |name: &str| config.lines().position(|line| line == format!("disk = \"{name}\"")).map(|n| n + 1);
    let (of_e, of_f) = (line_of("nvme:alone"), line_of("nvme:alone/1"));
    for ((name, refusal), number) in NAMED.iter().zip(1..) {
        let Some(refusal) = refusal else { continue };
        let guest = guests[number - 1].name();
        let other = if guest == "e" { of_f } else { of_e };
        let expected = refusal.replace("LINE", &other.unwrap_or_default().to_string());
        let (line, message) =
            session.wait(&format!("the mistake of guest {guest}"), seconds(60), |event| match event {
                Event::ConfigError { guest: Some(of), line, message, .. } if of == guest => {
                    Some((*line, message.clone()))
                }
                _ => None,
            })?;
        ensure!(message.contains(&expected), "guest {guest}: {message:?}; expected {expected:?}");
        context.figures.exactly(
            &format!("line of {guest}'s mistake"),
            line,
            line_of(name).unwrap_or_default() as f64,
        )?;
    }
    session.all_obey(["a"])?;
    context.figures.exactly("guests that run", session.running()?, 1)?;
    session.ask(Command::Report, seconds(20))?;
    for words in [
        "QEMU NVMe Ctrl",
        "healthy, 0 % of its life used",
        "0 unsafe shutdowns, 0 media errors",
        "8 MiB in blocks of 4096 bytes: disk = \"nvme:two/1\"",
        "16 MiB in blocks of 512 bytes: disk = \"nvme:two/2\"",
    ] {
        session.wait(&format!("the report of a disk with {words}"), seconds(20), |event| {
            matches!(event, Event::Report(entry) if entry.text.contains(words)).then_some(())
        })?;
    }
    let filled = session.act("a", "disk-fill:disk", seconds(240))?;
    context.figures.exactly("bytes that a wrote", number(&filled, "bytes")?, (2 * MIB) << 20)?;
    session.shut_down()?;
    ensure!(filled["written"] == checksum(&session.file("two-2")?), "{filled}");
    for untouched in ["alone", "two"] {
        let left = session.file(untouched)?.iter().filter(|byte| **byte != 0).count();
        context.figures.exactly(&format!("bytes of {untouched} that were written"), left, 0)?;
    }
    Ok(())
}

/// Checks that the report has the line of each disk. Guest a writes and reads all of them; see [`written_and_read`]. Returns
/// the checksums of what it wrote.
pub(super) fn all_written_and_read(
    context: &mut Context<'_>,
    session: &mut Session,
    lines: &[impl AsRef<str>],
    serials: &[&str],
) -> Result<Vec<String>> {
    for line in lines.iter().map(AsRef::as_ref) {
        session.ask(Command::Report, seconds(20))?;
        session.wait(&format!("the report of a disk with {line}"), seconds(20), |event| {
            matches!(event, Event::Report(entry) if entry.text.contains(line)).then_some(())
        })?;
    }
    serials.iter().map(|serial| written_and_read(context, session, serial)).collect()
}

/// Guest a discards a disk, and writes it again. `sum` is the checksum of what it writes.
pub(super) fn discarded_and_filled(
    context: &mut Context<'_>,
    session: &mut Session,
    serial: &str,
    sum: &str,
) -> Result<()> {
    let before = session.counters()?;
    let discarded = session.act("a", &format!("disk-discard:{serial}"), seconds(120))?;
    context.figures.exactly("bytes of a discarded disk that are not zero", number(&discarded, "left")?, 0)?;
    let bytes = grown(&[before, session.counters()?], "a", serial, "unmapped_bytes")?;
    context.figures.at_least("bytes discarded", bytes, MIB << 20)?;
    let filled = session.act("a", &format!("disk-fill:{serial}"), seconds(240))?;
    ensure!(filled["read"] == sum, "{filled}");
    Ok(())
}

/// Checks that no request of guest a to these disks has failed.
pub(super) fn none_failed(context: &mut Context<'_>, session: &mut Session, serials: &[&str]) -> Result<()> {
    let end = session.counters()?;
    for serial in serials {
        let device = disk(&end, "a", serial)?;
        let bad = device.count("errors") + device.count("unsupported") + device.ring_errors;
        context.figures.exactly(&format!("requests of {serial} that failed"), bad, 0)?;
    }
    Ok(())
}

/// Checks that the disks' files have these checksums.
pub(super) fn files_are_written(
    context: &mut Context<'_>,
    session: &Session,
    files: &[&str],
    sums: &[String],
) -> Result<()> {
    for (name, sum) in files.iter().zip(sums) {
        let bytes = session.file(name)?;
        context.figures.exactly(&format!("bytes in the file of {name}"), bytes.len() as u64, MIB << 20)?;
        let found = checksum(&bytes);
        ensure!(found == *sum, "the file of {name} has the checksum {found}, the guest wrote {sum}");
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
