//! Block devices over virtio disks: QEMU's device beneath, Linux's virtio_blk above. What the guest wrote is in the files
//! on the development machine.

use anyhow::{Result, ensure};
use control::{Command, Event};

use super::block::{checksum, grown};
use super::nvme::written_and_read;
use crate::boot::{Boot, alone};
use crate::counts::disk;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::number;
use crate::setup::VirtioDisk;

/// MiB of each disk, as the actions of the guest expect it.
const MIB: u64 = 8;
/// The disks, `vda` and `vdb`, with blocks of both sizes that guests can have.
const DISKS: [VirtioDisk; 2] = [
    VirtioDisk { name: "disk-512", mib: MIB, block_bytes: 512 },
    VirtioDisk { name: "disk-4096", mib: MIB, block_bytes: 4096 },
];

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "whole virtio disks of both block sizes written, read again in pages without an exit for I/O, and \
                 discarded by Linux; what was written is in the disks' files";
    vec![alone(Scenario::new("block-virtio", about, QEMU), whole_disks)]
}

fn whole_disks(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let lines = ["disk = \"vda\"", "disk = \"vdb\""];
    let guest = lines.iter().zip(DISKS).fold(Guest::new(1), |guest, (line, disk)| {
        guest.machine_disk(&format!("{line}\nserial = \"{}\"\n", disk.name))
    });
    let mut setup = server("block-virtio", &[guest.then("obey")]);
    setup.virtio_disks = DISKS.to_vec();
    // The memory of the drivers' buffers.
    setup.memory_mib += 16;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    for line in lines {
        session.ask(Command::Report, seconds(20))?;
        session.wait(&format!("the report of a disk with {line}"), seconds(20), |event| {
            matches!(event, Event::Report(entry) if entry.text.contains(line)).then_some(())
        })?;
    }
    let mut sums = Vec::new();
    for disk in DISKS {
        sums.push(written_and_read(context, &mut session, disk.name)?);
    }
    let [VirtioDisk { name, .. }, _] = DISKS;
    let before = session.counters()?;
    let discarded = session.act("a", &format!("disk-discard:{name}"), seconds(120))?;
    context.figures.exactly("bytes of a discarded disk that are not zero", number(&discarded, "left")?, 0)?;
    let bytes = grown(&[before, session.counters()?], "a", name, "unmapped_bytes")?;
    context.figures.at_least("bytes discarded", bytes, MIB << 20)?;
    let filled = session.act("a", &format!("disk-fill:{name}"), seconds(240))?;
    ensure!(filled["read"] == sums[0].as_str(), "{filled}");

    let end = session.counters()?;
    for VirtioDisk { name, .. } in DISKS {
        let device = disk(&end, "a", name)?;
        let bad = device.count("errors") + device.count("unsupported") + device.ring_errors;
        context.figures.exactly(&format!("requests of {name} that failed"), bad, 0)?;
    }
    session.shut_down()?;
    for (VirtioDisk { name, .. }, sum) in DISKS.iter().zip(&sums) {
        let bytes = session.file(name)?;
        context.figures.exactly(&format!("bytes in the file of {name}"), bytes.len() as u64, MIB << 20)?;
        let found = checksum(&bytes);
        ensure!(found == *sum, "the file of {name} has the checksum {found}, the guest wrote {sum}");
    }
    Ok(())
}
