//! `hvm_start_info`, version 1, and what it points to: the list of modules, the memory map and the command line.
//!
//! Follows Xen, public/arch-x86/hvm/start_info.h.

use memory::{BadAddress, GuestMemory};

use super::error::Error;
use crate::layout;

/// The pages of `hvm_start_info` and of what it points to.
pub const BOOT_INFO: u64 = 0x1_0000;
/// Address of the ACPI root pointer. The other tables follow it.
pub const TABLES: u64 = 0x2_0000;
/// First address after the tables.
pub const TABLES_END: u64 = 0x3_0000;

/// "xEn3", with bit 7 of the E set.
const MAGIC: u32 = 0x336e_c578;
const VERSION: u32 = 1;
/// Bytes of `hvm_start_info` of version 1.
const LENGTH: u64 = 56;
/// Bytes of an entry of the module list, and of the memory map.
const MODULE: u64 = 32;
const ENTRY: u64 = 24;

const MODULES_AT: u64 = BOOT_INFO + 0x100;
const MAP_AT: u64 = BOOT_INFO + 0x1000;
const COMMAND_LINE_AT: u64 = BOOT_INFO + 0x2000;
/// Longest command line in bytes without its zero. `sidecore.toml` allows less.
const COMMAND_LINE_LIMIT: u64 = TABLES - COMMAND_LINE_AT - 1;

/// Where the firmware's areas begin, and where they end.
const LEGACY: u64 = 0xa_0000;
const LEGACY_END: u64 = 0x10_0000;

/// XEN_HVM_MEMMAP_TYPE_RAM and XEN_HVM_MEMMAP_TYPE_RESERVED, the numbers of e820.
const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// What the start of a guest depends on.
pub(super) struct StartInfo<'a> {
    /// Address and length of the RAM disk.
    pub(super) initrd: Option<(u64, u64)>,
    pub(super) command_line: &'a str,
}

impl StartInfo<'_> {
    /// Writes all structures. Returns the address of `hvm_start_info`.
    pub(super) fn write(&self, memory: &GuestMemory) -> Result<u32, Error> {
        self.write_command_line(memory)?;
        let entries = write_map(memory)?;
        let modules = self.write_modules(memory)?;
        memory.zero(BOOT_INFO, LENGTH)?;
        memory.write_u32(BOOT_INFO, MAGIC)?;
        memory.write_u32(BOOT_INFO + 4, VERSION)?;
        memory.write_u32(BOOT_INFO + 12, modules)?; // nr_modules; flags, before it, are 0
        memory.write_u64(BOOT_INFO + 16, if modules == 0 { 0 } else { MODULES_AT })?; // modlist_paddr
        memory.write_u64(BOOT_INFO + 24, COMMAND_LINE_AT)?; // cmdline_paddr
        memory.write_u64(BOOT_INFO + 32, TABLES)?; // rsdp_paddr
        memory.write_u64(BOOT_INFO + 40, MAP_AT)?; // memmap_paddr
        memory.write_u32(BOOT_INFO + 48, entries)?; // memmap_entries
        Ok(BOOT_INFO as u32)
    }

    fn write_command_line(&self, memory: &GuestMemory) -> Result<(), Error> {
        let len = self.command_line.len() as u64;
        if len > COMMAND_LINE_LIMIT {
            return Err(Error::CommandLineTooLong { len, limit: COMMAND_LINE_LIMIT });
        }
        if let Some(at) = self.command_line.bytes().position(|b| b == 0) {
            return Err(Error::CommandLineHasZero { at: at as u64 });
        }
        memory.write(COMMAND_LINE_AT, self.command_line.as_bytes())?;
        memory.write(COMMAND_LINE_AT.saturating_add(len), &[0])?;
        Ok(())
    }

    /// Writes the module list. Returns the number of modules.
    fn write_modules(&self, memory: &GuestMemory) -> Result<u32, BadAddress> {
        let Some((at, len)) = self.initrd else { return Ok(0) };
        memory.zero(MODULES_AT, MODULE)?; // cmdline_paddr and the reserved field stay 0
        memory.write_u64(MODULES_AT, at)?;
        memory.write_u64(MODULES_AT + 8, len)?;
        Ok(1)
    }
}

/// Writes the memory map. Returns the number of its entries.
fn write_map(memory: &GuestMemory) -> Result<u32, BadAddress> {
    let mut entries = 0_u32;
    for (at, (from, to, kind)) in (MAP_AT..).step_by(ENTRY as usize).zip(map(memory)) {
        memory.write_u64(at, from)?;
        memory.write_u64(at.saturating_add(8), to.saturating_sub(from))?;
        memory.write_u32(at.saturating_add(16), kind)?;
        memory.write_u32(at.saturating_add(20), 0)?;
        entries = entries.saturating_add(1);
    }
    Ok(entries)
}

/// Returns the memory map: first address, end, type. Its RAM begins at 0 and leaves out what this file and the tables
/// take, and the area that firmware takes for itself.
fn map(memory: &GuestMemory) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
    let fixed = [
        (BOOT_INFO, TABLES_END, RESERVED),
        (LEGACY, LEGACY_END, RESERVED),
        (layout::ECAM, layout::ECAM + layout::ECAM_SIZE, RESERVED),
    ];
    let part = |from: u64, to: u64| {
        let regions = memory.regions().iter();
        regions.map(move |r| (r.gpa.max(from), r.end().min(to), RAM))
    };
    let ram = part(0, BOOT_INFO).chain(part(TABLES_END, LEGACY)).chain(part(LEGACY_END, u64::MAX));
    ram.chain(fixed).filter(|&(from, to, _)| from < to)
}

const _: () = {
    assert!(BOOT_INFO + LENGTH <= MODULES_AT && MODULES_AT + MODULE <= MAP_AT);
    // Three parts of each region, and the three fixed entries.
    assert!(MAP_AT + (3 * memory::guest::MAX_REGIONS as u64 + 3) * ENTRY <= COMMAND_LINE_AT);
};
