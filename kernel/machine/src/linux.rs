//! Starts Linux: a bzImage, by the 64-bit boot protocol.
//!
//! Follows Documentation/arch/x86/boot.rst and zero-page.rst (protocol 2.12 and later). The file comes from the
//! operator, but is treated as hostile. Every offset is checked, and each error names the value and its place.

use memory::{BadAddress, GuestMemory};

use crate::{
    layout,
    placement::{Placement, first_region_end, highest},
    vcpu::StartState,
};

mod header;

pub use header::{Error, Header};

/// Addresses below 1 MiB while the kernel starts. The kernel copies or reserves what it needs before it uses this
/// memory.
mod low {
    pub const BOOT_PARAMS: u64 = 0x7000;
    pub const GDT: u64 = 0x8000;
    /// One PML4, one PDPT, four page directories.
    pub const PAGE_TABLES: u64 = 0x9000;
    pub const COMMAND_LINE: u64 = 0x2_0000;
    /// Longest command line in bytes with its zero, even if the kernel allows more.
    pub const COMMAND_LINE_ROOM: u64 = 0x1_0000;
    /// End of usable memory. From here to 1 MiB are the firmware's areas, with the ACPI tables.
    pub const END: u64 = 0xa_0000;
}

/// Lowest address of the kernel.
const ONE_MIB: u64 = 0x10_0000;

/// A Linux to start.
#[derive(Clone, Copy, Debug)]
pub struct Linux<'a> {
    /// The bzImage.
    pub kernel: &'a [u8],
    /// The initial ramdisk, if there is one.
    pub initrd: Option<&'a [u8]>,
    /// The command line, without a zero.
    pub command_line: &'a str,
}

/// Loads Linux into a guest's memory. Returns the start state of the first vCPU. `rsdp` is the address of the ACPI root
/// pointer.
///
/// # Errors
/// The file is not a kernel that this can start, or the guest's memory is too small for it.
pub fn load(memory: &GuestMemory, linux: &Linux<'_>, rsdp: u64) -> Result<(StartState, Placement), Error> {
    let header = Header::parse(linux.kernel)?;
    let room = first_region_end(memory);
    let kernel_at = place_kernel(&header, room)?;
    memory.write(kernel_at, header.payload(linux.kernel))?;
    let kernel_end = kernel_at.saturating_add(header.memory_needed());

    let initrd = match linux.initrd {
        Some(initrd) if !initrd.is_empty() => {
            let at = place_initrd(&header, initrd.len() as u64, room, kernel_end)?;
            memory.write(at, initrd)?;
            Some((at, initrd.len() as u64))
        }
        _ => None,
    };

    write_command_line(memory, &header, linux.command_line)?;
    write_boot_params(memory, &header, linux, initrd, rsdp)?;
    write_page_tables(memory)?;
    let gdt = write_gdt(memory)?;
    let state = StartState::linux_64(kernel_at.saturating_add(0x200), low::BOOT_PARAMS, low::PAGE_TABLES, gdt);
    Ok((state, Placement { kernel: kernel_at, initrd }))
}

fn place_kernel(header: &Header, room: u64) -> Result<u64, Error> {
    let needed = header.memory_needed();
    let fits = |at: u64| at >= ONE_MIB && at.checked_add(needed).is_some_and(|end| end <= room);
    if fits(header.pref_address) {
        return Ok(header.pref_address);
    }
    let lowest = ONE_MIB.next_multiple_of(u64::from(header.kernel_alignment));
    if header.relocatable && fits(lowest) {
        return Ok(lowest);
    }
    Err(Error::NoRoomForKernel { at: header.pref_address, needed, room })
}

/// Returns the highest address allowed for the ramdisk, so that the kernel does not need that memory.
fn place_initrd(header: &Header, len: u64, room: u64, kernel_end: u64) -> Result<u64, Error> {
    let limit = room.min(u64::from(header.initrd_addr_max).saturating_add(1));
    let at = highest(len, limit).filter(|&at| at >= kernel_end);
    at.ok_or(Error::NoRoomForInitrd { len, from: kernel_end, to: limit })
}

fn write_command_line(memory: &GuestMemory, header: &Header, command_line: &str) -> Result<(), Error> {
    let len = command_line.len() as u64;
    let limit = u64::from(header.cmdline_size).min(low::COMMAND_LINE_ROOM - 1);
    if len > limit {
        return Err(Error::CommandLineTooLong { len, limit });
    }
    if let Some(at) = command_line.bytes().position(|b| b == 0) {
        return Err(Error::CommandLineHasZero { at: at as u64 });
    }
    memory.write(low::COMMAND_LINE, command_line.as_bytes())?;
    memory.write(low::COMMAND_LINE.saturating_add(len), &[0])?;
    Ok(())
}

fn write_boot_params(
    memory: &GuestMemory,
    header: &Header,
    linux: &Linux<'_>,
    initrd: Option<(u64, u64)>,
    rsdp: u64,
) -> Result<(), BadAddress> {
    const BASE: u64 = low::BOOT_PARAMS;
    const HEADER: u64 = BASE + header::START as u64;
    memory.zero(BASE, 0x1000)?;
    memory.write(HEADER, header.bytes(linux.kernel))?;
    memory.write_u64(BASE + 0x070, rsdp)?; // acpi_rsdp_addr
    memory.write(BASE + 0x210, &[0xff])?; // type_of_loader: none of the registered ones
    let (at, len) = initrd.unwrap_or((0, 0));
    memory.write_u32(BASE + 0x218, at as u32)?; // ramdisk_image
    memory.write_u32(BASE + 0x21c, len as u32)?; // ramdisk_size
    memory.write_u32(BASE + 0x0c0, (at >> 32) as u32)?; // ext_ramdisk_image
    memory.write_u32(BASE + 0x0c4, (len >> 32) as u32)?; // ext_ramdisk_size
    memory.write_u32(BASE + 0x228, low::COMMAND_LINE as u32)?; // cmd_line_ptr
    memory.write_u64(BASE + 0x250, 0)?; // setup_data: none
    let mut entries = 0_u8;
    for (at, (from, to, kind)) in (BASE + 0x2d0..).step_by(20).zip(memory_map(memory)) {
        memory.write_u64(at, from)?;
        memory.write_u64(at.saturating_add(8), to.saturating_sub(from))?;
        memory.write_u32(at.saturating_add(16), kind)?;
        entries = entries.saturating_add(1);
    }
    memory.write(BASE + 0x1e8, &[entries]) // e820_entries
}

/// Returns the e820 map: first address, end, type.
fn memory_map(memory: &GuestMemory) -> impl Iterator<Item = (u64, u64, u32)> {
    const RAM: u32 = 1;
    const RESERVED: u32 = 2;
    let fixed = [(low::END, ONE_MIB, RESERVED), (layout::ECAM, layout::ECAM + layout::ECAM_SIZE, RESERVED)];
    let below = memory.regions().iter().map(|r| (r.gpa, r.end().min(low::END), RAM));
    let above = memory.regions().iter().map(|r| (r.gpa.max(ONE_MIB), r.end(), RAM));
    below.chain(above).chain(fixed).filter(|&(from, to, _)| from < to)
}

/// Writes an identity map of the first 4 GiB, with 2 MiB pages.
fn write_page_tables(memory: &GuestMemory) -> Result<(), BadAddress> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    const PML4: u64 = low::PAGE_TABLES;
    const PDPT: u64 = PML4 + 0x1000;
    const DIRECTORIES: u64 = PDPT + 0x1000;
    memory.zero(PML4, 0x2000)?;
    memory.write_u64(PML4, PDPT | PRESENT_WRITABLE)?;
    for (at, directory) in (PDPT..).step_by(8).zip((DIRECTORIES..).step_by(0x1000)).take(4) {
        memory.write_u64(at, directory | PRESENT_WRITABLE)?;
    }
    for (at, page) in (DIRECTORIES..).step_by(8).zip(0..4 * 512) {
        memory.write_u64(at, page << 21 | LARGE | PRESENT_WRITABLE)?;
    }
    Ok(())
}

/// Writes the table for the segments of [`StartState::linux_64`]: __BOOT_CS 0x10, __BOOT_DS 0x18, a TSS at 0x20.
fn write_gdt(memory: &GuestMemory) -> Result<(u64, u16), BadAddress> {
    const ENTRIES: [u64; 6] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x0000_8b00_0000_0067, 0];
    const LIMIT: u16 = (ENTRIES.len() * 8 - 1) as u16;
    for (at, entry) in (low::GDT..).step_by(8).zip(ENTRIES) {
        memory.write_u64(at, entry)?;
    }
    Ok((low::GDT, LIMIT))
}

#[cfg(test)]
mod tests;
