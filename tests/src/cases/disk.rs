//! The disk image of `cargo mk disk`, on plain QEMU with UEFI firmware. These machines run no sidecore.

use anyhow::{Result, ensure};

use crate::boot::{Boot, alone};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "the disk image on OVMF: GRUB, Debian to a login, nothing failed, apt works; clean for sgdisk and fsck";
    vec![alone(Scenario::new("disk-ovmf", about, QEMU).taking_turns(), ovmf)]
}

fn ovmf(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let limit = seconds(300);
    let mut disk = context.boot_disk("disk-ovmf")?;
    let figures = &mut context.figures;

    let (state, _) = disk.run("systemctl is-system-running --wait", limit)?;
    let (failed, _) = disk.run("systemctl list-units --failed --plain --no-legend --no-pager", limit)?;
    ensure!(state.trim() == "running", "the system is {}; failed units:\n{failed}", state.trim());
    figures.exactly("failed units", failed.lines().count(), 0)?;
    for (what, command) in [
        ("exit code of apt-get check", "apt-get check"),
        ("exit code of a test for UEFI", "test -d /sys/firmware/efi"),
        ("exit code of a test for the root file system", "test \"$(findmnt -no FSTYPE /)\" = ext4"),
        ("exit code of a test for the ESP", "mountpoint -q /boot/efi"),
        ("exit code of a test for a login on hvc0", "systemctl is-active serial-getty@hvc0.service"),
        // The hook writes the same kernel and initramfs to the ESP again.
        ("exit code of the hook for the ESP", "rm /boot/efi/debian/* && /etc/initramfs/post-update.d/zz-esp"),
        ("exit code of a comparison of kernels", "cmp /vmlinuz /boot/efi/debian/vmlinuz"),
        ("exit code of a comparison of initramfs", "cmp /initrd.img /boot/efi/debian/initrd.img"),
    ] {
        let (output, status) = disk.run(command, limit)?;
        ensure!(status == 0, "{command} ends with {status}: {output}");
        figures.exactly(what, status, 0)?;
    }
    figures.exactly("packages that are not configured", disk.number("dpkg --audit | wc -l", limit)?, 0)?;
    figures.at_least("packages", disk.number("dpkg-query -W | wc -l", limit)?, 100)?;
    let faults = "journalctl -b --no-pager -k -p err --grep 'EXT4-fs|FAT-fs|I/O error' -q | wc -l";
    figures.exactly("errors of file systems and disks", disk.number(faults, limit)?, 0)?;
    disk.power_off(limit)
}
