//! Block devices over virtio disks: QEMU's device beneath, Linux's virtio_blk above. What the guest wrote is in the files
//! on the development machine.

use anyhow::Result;

use super::nvme::{MIB, all_written_and_read, discarded_and_filled, files_are_written, none_failed};
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario};
use crate::setup::VirtioDisk;

/// The disks, `vda` and `vdb`, with blocks of both sizes that guests can have.
const DISKS: [VirtioDisk; 2] = [
    VirtioDisk { name: "disk-512", mib: MIB, block_bytes: 512 },
    VirtioDisk { name: "disk-4096", mib: MIB, block_bytes: 4096 },
];

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "whole virtio disks of both block sizes written, read again in pages without an exit for I/O, and \
                 discarded by Linux; what was written is in the disks' files";
    vec![alone(Scenario::new("block-virtio", about, QEMU).taking_turns(), whole_disks)]
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
    let names = DISKS.map(|disk| disk.name);
    let sums = all_written_and_read(context, &mut session, &lines, &names)?;
    discarded_and_filled(context, &mut session, names[0], &sums[0])?;
    none_failed(context, &mut session, &names)?;
    session.shut_down()?;
    files_are_written(context, &session, &names, &sums)
}
