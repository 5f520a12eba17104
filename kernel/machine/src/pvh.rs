//! Starts an ELF file by the PVH entry: a kernel such as Linux's `vmlinux`, or firmware.
//!
//! Follows Xen's PVH start ABI (docs/misc/pvh.pandoc; public/arch-x86/hvm/start_info.h, version 1). The first vCPU begins
//! in 32-bit protected mode with paging off, and EBX points to `hvm_start_info`.
//!
//! What is put into memory:
//!
//! ```text
//! 0x10000  hvm_start_info, module list, memory map, command line   [`BOOT_INFO`]
//! 0x20000  ACPI tables                                             [`TABLES`]
//! 1 MiB    the segments, at the addresses that the file has
//! top      the initial RAM disk, as high as possible below the PCI hole
//! ```
//!
//! Firmware uses low memory at fixed addresses before it reads the memory map: 0x6000, 0x7000, 0x4b000 (the command line
//! that rust-hypervisor-firmware gives to Linux), 0x80000 and above (where EDK2 starts the other vCPUs), 0xA0000 to
//! 0xFFFFF. None of the above is there. The map says that 0x10000 to 0x2FFFF is reserved.

use memory::GuestMemory;

use crate::{
    elf::{Elf, Segment},
    layout,
    placement::{self, Placement},
    vcpu::StartState,
};

mod error;
mod start_info;

pub use error::Error;
pub use start_info::{BOOT_INFO, TABLES, TABLES_END};

use error::ONE_MIB;
use start_info::StartInfo;

/// An ELF file to start.
#[derive(Clone, Copy, Debug)]
pub struct Pvh<'a> {
    /// The ELF file.
    pub file: &'a [u8],
    /// The initial RAM disk, if there is one.
    pub initrd: Option<&'a [u8]>,
    /// The command line, without a zero.
    pub command_line: &'a str,
}

/// Loads an ELF file into a guest's memory. Returns the start state of the first vCPU. The ACPI root pointer is at
/// [`TABLES`].
///
/// # Errors
/// The file cannot be started by the PVH entry, or the guest's memory is too small for it.
pub fn load(memory: &GuestMemory, pvh: &Pvh<'_>) -> Result<(StartState, Placement), Error> {
    let elf = Elf::parse(pvh.file)?;
    let room = placement::first_region_end(memory);
    check_segments(&elf, room)?;
    for segment in &elf.segments {
        memory.write(segment.address, elf.bytes(segment))?;
        memory
            .zero(segment.address.saturating_add(segment.file_size), segment.size.saturating_sub(segment.file_size))?;
    }
    let first = elf.segments.iter().map(|s| s.address).min().unwrap_or(ONE_MIB);
    let end = elf.segments.iter().map(Segment::end).max().unwrap_or(ONE_MIB);
    let initrd = match pvh.initrd {
        Some(initrd) if !initrd.is_empty() => {
            let len = initrd.len() as u64;
            let at = placement::highest(len, room).filter(|&at| at >= end);
            let at = at.ok_or(Error::NoRoomForInitrd { len, from: end, to: room })?;
            memory.write(at, initrd)?;
            Some((at, len))
        }
        _ => None,
    };
    let start_info = StartInfo { initrd, command_line: pvh.command_line }.write(memory)?;
    Ok((StartState::pvh(elf.entry, start_info), Placement { kernel: first, initrd }))
}

/// Checks that each segment is in memory above 1 MiB, that no two overlap, and that the entry is in one of them.
fn check_segments(elf: &Elf<'_>, room: u64) -> Result<(), Error> {
    for (number, segment) in elf.segments.iter().enumerate() {
        let Segment { header, address, size, .. } = *segment;
        if address < ONE_MIB || segment.end() > room {
            return Err(Error::OutsideMemory { header, address, size, room });
        }
        let overlaps = |other: &&Segment| other.address < segment.end() && address < other.end();
        if let Some(other) = elf.segments.iter().take(number).find(overlaps) {
            let address = address.max(other.address);
            return Err(Error::Overlap { first: other.header, second: header, address });
        }
    }
    let entry = u64::from(elf.entry);
    if elf.segments.iter().any(|s| (s.address..s.end()).contains(&entry)) {
        Ok(())
    } else {
        Err(Error::EntryOutside { entry })
    }
}

const _: () = {
    // Linux maps the first GiB when it reads these structures, and rust-hypervisor-firmware the first 2 MiB.
    assert!(TABLES_END <= ONE_MIB);
    assert!(layout::LOW_MEMORY_END > ONE_MIB);
};

#[cfg(test)]
mod tests;
