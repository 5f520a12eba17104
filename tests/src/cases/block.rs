//! Block devices over RAM disks, with Linux's virtio_blk as the judge.

use anyhow::{Result, ensure};
use control::{Command, Counters, Event, GuestState};
use sha2::{Digest as _, Sha256};

use crate::boot::{Boot, Check, Shared, Wanted};
use crate::costs::Costs;
use crate::counts::disk;
use crate::guests::{Guest, server};
use crate::platform::{EVERYWHERE, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

/// MiB of the disk that is empty at first.
const SCRATCH_MIB: u32 = 8;
/// Bytes of it.
const SCRATCH: u64 = (SCRATCH_MIB as u64) << 20;
/// Bytes of a read when the guest reads with the least read-ahead: a page.
const PAGE: u64 = 4096;
/// MiB of the disk over a compressed module: more than its contents.
const PACKED_MIB: u32 = 8;
/// MiB of each overlay.
const OVERLAY_MIB: u32 = 1;
/// Blocks of each overlay.
const OVERLAY_BLOCKS: u64 = ((OVERLAY_MIB as u64) << 20) / PAGE;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let whole =
        "a whole disk written, read again and discarded by Linux, thousands of requests without an exit for I/O";
    let overlay = "two guests on one boot module: neither sees what the other writes; a full overlay fails writes and nothing \
                   else; a compressed module is unpacked";
    let filled = "an ext2 file system made, filled and checked; its disk outlives its guest";
    vec![Box::new(Shared {
        name: "disks",
        about: "a and b have disks over one boot module, each with its own overlay; a has an empty one and a read-only one too",
        start,
        end: |mut session| session.shut_down().map(drop),
        checks: vec![
            Check::new(
                Scenario::new("block", whole, EVERYWHERE),
                whole_disk as fn(&mut Context<'_>, &mut Session) -> Result<()>,
            ),
            Check::new(Scenario::new("block-overlay", overlay, EVERYWHERE), overlays),
            Check::new(Scenario::new("block-filesystem", filled, QEMU).taking_turns(), file_system),
        ],
    })]
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let overlay = format!("module = \"initrd-small\"\noverlay = \"{OVERLAY_MIB}M\"\nserial = \"base\"\n");
    let scratch = format!("size = \"{SCRATCH_MIB}M\"\nserial = \"scratch\"\npacked = true\nqueues = 2\n");
    let first = if wanted.any(&["block-filesystem"]) { Guest::new(1).full() } else { Guest::new(1) };
    let mut guests = vec![
        first
            .disk(SCRATCH_MIB, &scratch)
            .disk(OVERLAY_MIB, &overlay)
            .disk(0, "module = \"vmlinuz\"\nreadonly = true\nserial = \"fixed\"\n"),
    ];
    if wanted.any(&["block-overlay"]) {
        // Room for its contents, and for the decoder.
        let lines =
            format!("module = \"packed.zst\"\nsize = \"{PACKED_MIB}M\"\nreadonly = true\nserial = \"packed\"\n");
        guests = guests.into_iter().map(|guest| guest.disk(PACKED_MIB + 28, &lines)).collect();
    }
    if wanted.any(&["block-overlay"]) || wanted.any(&["block-filesystem"]) {
        guests.push(Guest::new(2).disk(OVERLAY_MIB, &overlay));
    }
    let guests: Vec<Guest> = guests.into_iter().map(|guest| guest.then("obey")).collect();
    let mut setup = server("disks", &guests);
    // The disk of guest a needs this module even if no guest has it as its initial RAM disk.
    let small = crate::setup::Module::new("initrd-small", crate::setup::Content::SmallInitrd);
    if !setup.modules.contains(&small) {
        setup.modules.push(small);
    }
    if wanted.any(&["block-overlay"]) {
        setup.modules.push(crate::setup::Module::new("packed.zst", crate::setup::Content::Packed));
    }
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

/// The checksum of a disk's contents, as the guests print it.
pub(super) fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The growth of a count of a disk between two readings.
pub(super) fn grown(counters: &[Counters; 2], guest: &str, serial: &str, kind: &str) -> Result<u64> {
    let [before, after] = counters.each_ref().map(|reading| disk(reading, guest, serial).map(|d| d.count(kind)));
    Ok(after? - before?)
}

/// Guest a writes its empty disk, reads it, reads it in pages, and discards it.
fn whole_disk(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let start = session.counters()?;
    let filled = session.act("a", "disk-fill:scratch", seconds(240))?;
    let written = session.counters()?;
    ensure!(filled["written"] == filled["read"], "what was read is not what was written: {filled}");
    let read = session.act("a", "disk-read:scratch:4", seconds(240))?;
    let paged = session.counters()?;
    ensure!(read["sha256"] == filled["written"], "what was read in pages is not what was written: {read}");

    let figures = &mut context.figures;
    figures.exactly("bytes that a wrote and read", number(&filled, "bytes")?, SCRATCH)?;
    let writing = [start, written.clone()];
    figures.at_least("bytes of writes", grown(&writing, "a", "scratch", "written_bytes")?, SCRATCH)?;
    figures.at_least("bytes of reads", grown(&writing, "a", "scratch", "read_bytes")?, SCRATCH)?;
    figures.at_least("flushes", grown(&writing, "a", "scratch", "flushes")?, 1)?;

    let reading = [written, paged.clone()];
    let reads = grown(&reading, "a", "scratch", "reads")?;
    figures.at_least("reads of a page", reads, SCRATCH / PAGE)?;
    let costs = Costs::between(&reading, "a")?;
    let [before, after] = [&reading[0], &reading[1]].map(|reading| disk(reading, "a", "scratch"));
    let (before, after) = (before?, after?);
    figures.exactly("notifications of the disk meanwhile", after.kicks - before.kicks, 0)?;
    figures.exactly("exits for I/O meanwhile", costs.io_exits(), 0)?;
    figures.at_least("interrupts meanwhile", after.interrupts - before.interrupts, 1)?;
    figures.note("exits meanwhile, all", costs.all_exits());

    let refused = session.act("a", "disk-refuses:fixed", seconds(60))?;
    figures.exactly("writes to a read-only disk that failed", number(&refused, "refused")?, 1)?;
    let discarded = session.act("a", "disk-discard:scratch", seconds(120))?;
    figures.exactly("bytes of the discarded disk that are not zero", number(&discarded, "left")?, 0)?;
    let end = session.counters()?;
    let discarding = [paged, end.clone()];
    figures.at_least("bytes discarded", grown(&discarding, "a", "scratch", "unmapped_bytes")?, SCRATCH)?;
    for serial in ["scratch", "base", "fixed"] {
        let device = disk(&end, "a", serial)?;
        let bad = device.count("errors") + device.count("unsupported") + device.ring_errors;
        figures.exactly(&format!("requests of {serial} that failed"), bad, 0)?;
    }
    Ok(())
}

/// Guests a and b write to disks over the same module, and a fills its overlay.
fn overlays(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    // A compressed module is unpacked, and the rest of its disk is zeroes.
    let mut contents = crate::setup::packed();
    contents.resize((PACKED_MIB as usize) << 20, 0);
    let packed = session.act("a", "disk-read:packed", seconds(120))?;
    ensure!(packed["sha256"] == checksum(&contents).as_str(), "the disk over a compressed module: {packed}");
    let [a, b] = ["a", "b"].map(|name| session.act(name, "disk-read:base", seconds(120)));
    let (a, b) = (a?, b?);
    ensure!(a == b, "the same module has different contents: {a} and {b}");
    session.act("a", "disk-write:base:0:256", seconds(60))?;
    let changed = session.act("a", "disk-read:base", seconds(120))?;
    let same = session.act("b", "disk-read:base", seconds(120))?;
    ensure!(changed != a && same == b, "a's write: {changed}; b's disk: {same}, before: {b}");

    let figures = &mut context.figures;
    figures.exactly("blocks in a's overlay", disk(&session.counters()?, "a", "base")?.overlay_used, 64)?;
    figures.exactly("blocks in b's overlay", disk(&session.counters()?, "b", "base")?.overlay_used, 0)?;
    // 2 MiB do not fit in 1 MiB.
    let over = session.act("a", "disk-write:base:0:2048", seconds(60))?;
    ensure!(over["failed"] == 1, "2 MiB went into an overlay of 1 MiB: {over}");
    let said = session.wait("the report of an overlay nearly full", seconds(20), |event| match event {
        Event::Log { text, .. } if text.contains("overlay of disk base") => Some(text.clone()),
        _ => None,
    })?;
    ensure!(said.starts_with("guest a:"), "{said}");
    let full = disk(&session.counters()?, "a", "base")?;
    figures.exactly("blocks of a full overlay in use", full.overlay_used, OVERLAY_BLOCKS)?;
    figures.at_least("writes that failed because it was full", full.overlay_full, 1)?;
    figures.at_least("of these told to the guest", full.count("errors"), 1)?;
    // What is in the overlay can still be written, and b's has room.
    for name in ["a", "b"] {
        let wrote = session.act(name, "disk-write:base:0:256", seconds(60))?;
        ensure!(wrote["failed"] == 0, "guest {name}: {wrote}");
    }
    let discarded = session.act("a", "disk-discard:base", seconds(60))?;
    figures.exactly("bytes of the discarded disk that are not zero", number(&discarded, "left")?, 0)?;
    figures.exactly("blocks in use then", disk(&session.counters()?, "a", "base")?.overlay_used, 0)?;
    let wrote = session.act("a", "disk-write:base:1024:256", seconds(60))?;
    ensure!(wrote["failed"] == 0, "after the discard: {wrote}");
    Ok(())
}

/// Guest a makes a file system and writes files. After a restart it finds them.
fn file_system(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let made = session.act("a", "disk-fs:scratch:make", seconds(120))?;
    let found = session.act("a", "disk-fs:scratch:check", seconds(60))?;
    ensure!(made["sha256"] == found["sha256"], "{made}, {found}");
    session.act("a", "reboot", seconds(60))?;
    session.state("a", GuestState::Stopped, seconds(60))?;
    session.ask(Command::Start("a".to_owned()), seconds(20))?;
    session.result("a", "obey", seconds(120))?;
    let found = session.act("a", "disk-fs:scratch:check", seconds(60))?;
    ensure!(made["sha256"] == found["sha256"], "after a restart: {made}, {found}");
    let figures = &mut context.figures;
    figures.exactly("files after the restart", number(&found, "files")?, number(&made, "files")?)?;
    let device = disk(&session.counters()?, "a", "scratch")?;
    figures.exactly("requests that failed", device.count("errors") + device.ring_errors, 0)
}
