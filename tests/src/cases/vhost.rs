//! The engine as a Linux process: DPDK's ports, QEMU's guests and their disks at `sidecore-vhost`. These machines run no sidecore.

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::boot::{Boot, alone};
use crate::linux::Setup;
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::tcp;
use crate::vhost::{all, disk, port, testpmd_counts};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let scenario = |name, about| Scenario::new(name, about, QEMU);
    vec![
        alone(
            scenario("vhost-dpdk", "a million frames between two of DPDK's virtio-user ports at sidecore-vhost"),
            |context, ()| forward(context, "vhost-dpdk", false),
        ),
        alone(scenario("vhost-dpdk-packed", "the same on packed rings"), |context, ()| {
            forward(context, "vhost-dpdk-packed", true)
        }),
        alone(scenario("vhost-guests", "two plain guests of QEMU at sidecore-vhost: ping, TCP both ways"), guests),
        alone(
            scenario("vhost-blk", "a plain guest of QEMU with disks of sidecore-vhost: written, read again, discarded")
                .taking_turns(),
            disks,
        ),
        alone(
            scenario(
                "vhost-blk-killed",
                "sidecore-vhost with disks in files, killed while a guest of QEMU writes them",
            ),
            killed,
        ),
    ]
}

/// Least number of frames that have to arrive.
const FRAMES: u64 = 1_000_000;
/// Descriptors of a ring of testpmd.
const RING: u64 = 1024;
/// Number of the feature bit VIRTIO_F_RING_PACKED.
const RING_PACKED: u64 = 34;
/// Number of the feature bit VIRTIO_F_IN_ORDER.
const IN_ORDER: u64 = 35;
/// Counters of frames that did not arrive.
const DROPS: [&str; 7] = [
    "rx_no_buffer",
    "rx_too_large",
    "rx_not_running",
    "tx_bad_length",
    "tx_bad_header",
    "tx_bad_source",
    "tx_no_destination",
];

fn forward(context: &mut Context<'_>, name: &str, packed: bool) -> Result<()> {
    let (mut vhost, mut testpmd) = context.launch_testpmd(name, packed)?;
    // Each port sends 12 bursts of 32 frames. testpmd sends a frame that arrives at one port by the other.
    testpmd.tell("start tx_first 12")?;
    vhost.until(seconds(900), |counters| {
        testpmd.lives()?;
        Ok(all(counters, "rx_packets")? >= FRAMES)
    })?;
    let negotiated = vhost.counters(seconds(60))?;
    for n in [0, 1] {
        let features = port(&negotiated, n, "features")?;
        context.figures.exactly(
            &format!("packed rings at port {n}"),
            features >> RING_PACKED & 1,
            u64::from(packed),
        )?;
        // With IN_ORDER, testpmd looks for its buffers in order only.
        context.figures.exactly(&format!("buffers in order at port {n}"), features >> IN_ORDER & 1, 1)?;
    }
    testpmd.tell("stop")?;
    let mut before = 0;
    vhost.until(seconds(120), |counters| {
        let now = all(counters, "tx_packets")?;
        Ok(std::mem::replace(&mut before, now) == now)
    })?;
    testpmd.tell("show port stats all")?;
    let counts = testpmd_counts(&testpmd.quit()?)?;
    let counters = vhost.end(seconds(60))?;

    let (sent, arrived) = (all(&counters, "tx_packets")?, all(&counters, "rx_packets")?);
    let dropped = dropped(&counters)?;
    let figures = &mut context.figures;
    figures.at_least("frames that arrived", arrived, FRAMES)?;
    figures.note("frames dropped", dropped);
    figures.exactly(
        "frames sent that neither arrived nor were counted as dropped",
        sent.abs_diff(arrived + dropped),
        0,
    )?;
    figures.exactly("rules of the ring that testpmd broke", all(&counters, "faults")?, 0)?;
    for (n, (received, transmitted)) in counts.iter().enumerate() {
        figures.exactly(
            &format!("frames of port {n} by testpmd's count"),
            *transmitted,
            port(&counters, n, "tx_packets")?,
        )?;
        // Frames that were still in testpmd's ring when it stopped.
        let unread = port(&counters, n, "rx_packets")?.abs_diff(*received);
        figures.at_most(&format!("frames to port {n} that testpmd has not read"), unread, RING)?;
    }
    figures.exactly("ports of testpmd", counts.len(), 2)
}

/// Frames that did not arrive, of both ports.
fn dropped(counters: &Value) -> Result<u64> {
    DROPS.iter().map(|cause| all(counters, cause)).sum()
}

const A: Setup =
    Setup { name: "a", number: 1, cpus: 1, memory_mib: 256, reboots: false, options: "", backplane: false };
const B: Setup = Setup { name: "b", number: 2, ..A };

fn guests(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (mut vhost, mut machines) = context.boot_vhost("vhost-guests", &[A, B])?;
    let [a, b] = machines.as_mut_slice() else { unreachable!("two were asked for") };
    let answered = b.number("ping:100", "received", seconds(240))?;
    context.figures.exactly("pings answered", answered, 100)?;
    a.ask("iperf-server", seconds(60))?;
    for (way, direction) in [("", "out"), (":reverse", "in")] {
        let before = dropped(&vhost.counters_now(seconds(60))?)?;
        let stream = b.ask(&tcp::action(16, way), seconds(240))?;
        let dropped = dropped(&vhost.counters_now(seconds(60))?)? - before;
        tcp::arrived_at_once(&mut context.figures, direction, &stream, 16, dropped)?;
    }
    drop(machines);
    let counters = vhost.end(seconds(60))?;
    for n in [0, 1] {
        context.figures.at_least(&format!("packets to port {n}"), port(&counters, n, "rx_packets")?, 100)?;
        context.figures.exactly(&format!("rules of the ring broken at port {n}"), port(&counters, n, "faults")?, 0)?;
    }
    Ok(())
}

/// MiB of each disk that is written.
const DISK_MIB: u64 = 8;

/// Linux's virtio_blk writes a disk with split rings and one with packed rings, each with two queues.
fn disks(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let empty = |serial| format!("size = \"{DISK_MIB}M\"\nqueues = 2\nserial = \"{serial}\"\n");
    let (split, packed) = (empty("split"), empty("packed") + "requests = \"notify\"\n");
    let fixed = "size = \"1M\"\nqueues = 2\nserial = \"fixed\"\nreadonly = true\n";
    let setup = Setup { cpus: 2, ..A };
    let (vhost, mut guest) = context.boot_vhost_disks("vhost-blk", &setup, &[&split, &packed, fixed])?;
    let bytes = DISK_MIB << 20;
    for name in ["split", "packed"] {
        let filled = guest.ask(&format!("disk-fill:{name}"), seconds(240))?;
        ensure!(filled["written"] == filled["read"], "what was read is not what was written: {filled}");
        let read = guest.ask(&format!("disk-read:{name}:4"), seconds(240))?;
        ensure!(read["sha256"] == filled["written"], "what was read in pages is not what was written: {read}");
        let size = filled["bytes"].as_u64().with_context(|| format!("no bytes in {filled}"))?;
        context.figures.exactly(&format!("bytes that the guest wrote and read, {name}"), size, bytes)?;
        let discarded = guest.number(&format!("disk-discard:{name}"), "left", seconds(120))?;
        context.figures.exactly(&format!("bytes of the discarded disk that are not zero, {name}"), discarded, 0)?;
    }
    let refused = guest.number("disk-refuses:fixed", "refused", seconds(60))?;
    context.figures.exactly("writes to a read-only disk that failed", refused, 1)?;
    drop(guest);
    let counters = vhost.end(seconds(60))?;
    for (n, name, is_packed) in [(0, "split", 0), (1, "packed", 1)] {
        let count = |kind| disk(&counters, n, kind);
        context.figures.exactly(&format!("packed rings, {name}"), count("features")? >> RING_PACKED & 1, is_packed)?;
        context.figures.at_least(&format!("bytes of writes, {name}"), count("written_bytes")?, bytes)?;
        context.figures.at_least(&format!("reads of a page, {name}"), count("reads")?, bytes / 4096)?;
        context.figures.at_least(&format!("flushes, {name}"), count("flushes")?, 1)?;
        context.figures.at_least(&format!("discards, {name}"), count("discards")?, 1)?;
        context.figures.exactly(&format!("requests that failed, {name}"), count("errors")?, 0)?;
        context.figures.exactly(&format!("rules of the ring that Linux broke, {name}"), count("faults")?, 0)?;
    }
    Ok(())
}

/// MiB of each file.
const FILE_MIB: u64 = 8;
/// How often each disk is filled. The process is killed each time.
const KILLS: usize = 2;

/// The process is killed while Linux writes, and started again. Linux notices nothing, and finds what it wrote.
fn killed(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let files = ["split", "packed"].map(|name| File::new(name, FILE_MIB << 20));
    let [split, packed] = files;
    let (split, packed) = (split?, packed?);
    let files = [&split, &packed];
    let disk_of = |file: &File, name| format!("file = {:?}\nqueues = 2\nserial = \"{name}\"\n", file.0);
    let disks = [disk_of(&split, "split"), disk_of(&packed, "packed") + "requests = \"notify\"\n"];
    let setup = Setup { cpus: 2, ..A };
    let (mut vhost, mut guest) = context.boot_vhost_disks("vhost-blk-killed", &setup, &[&disks[0], &disks[1]])?;
    for (n, (name, file)) in ["split", "packed"].into_iter().zip(files).enumerate() {
        let mut went_on = 0;
        for _ in 0..KILLS {
            file.clear()?;
            guest.tell(&format!("disk-fill:{name}"))?;
            file.until_written(seconds(480))?;
            vhost.kill_and_start()?;
            let filled = guest.answer("disk-fill", seconds(480))?;
            ensure!(filled["written"] == filled["read"], "what was read is not what was written: {filled}");
            let counters = vhost.counters_now(seconds(60))?;
            went_on += disk(&counters, n, "written_bytes")? + disk(&counters, n, "read_bytes")?;
        }
        context.figures.at_least(
            &format!("bytes that were written and read after the process was killed, {name}"),
            went_on,
            1,
        )?;
        let counters = vhost.counters_now(seconds(60))?;
        let is_packed = disk(&counters, n, "features")? >> RING_PACKED & 1;
        context.figures.exactly(&format!("packed rings, {name}"), is_packed, n as u64)?;
    }
    drop(guest);
    let counters = vhost.end(seconds(60))?;
    for (n, name) in ["split", "packed"].into_iter().enumerate() {
        for kind in ["errors", "faults"] {
            context.figures.exactly(&format!("{kind}, {name}"), disk(&counters, n, kind)?, 0)?;
        }
    }
    Ok(())
}

/// A file of zeroes, which is removed at the end.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, bytes: u64) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("sidecore-{name}-{}", std::process::id()));
        std::fs::File::create(&path)?.set_len(bytes)?;
        Ok(Self(path))
    }

    /// Makes it a hole, while nobody writes it.
    fn clear(&self) -> Result<()> {
        let file = std::fs::File::options().write(true).open(&self.0)?;
        file.set_len(0)?;
        Ok(file.set_len(FILE_MIB << 20)?)
    }

    /// Waits until a block of it is written.
    fn until_written(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while std::fs::metadata(&self.0)?.blocks() == 0 {
            ensure!(Instant::now() < deadline, "nothing is written to {}", self.0.display());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // It may be gone.
        let _ = std::fs::remove_file(&self.0);
    }
}
