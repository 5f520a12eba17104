//! Walks a guest's page tables, for instructions that the host must read.
//!
//! Follows SDM vol. 3A ch. 4: no paging, 32-bit, PAE and 4-level (5-level too, though CPUID does not offer it), with
//! the checks of 4.6 and the error codes of 4.7. An entry outside the guest's memory reads as all ones, as on a bus
//! where nothing answers. So it has a reserved bit set, which is a fault.

use memory::GuestMemory;

use crate::vcpu::Vcpu;

/// The access for which an address is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A data read.
    Read,
    /// A data write. Sets the leaf's dirty bit.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// The #PF that hardware would raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Linear address, for CR2.
    pub address: u64,
    /// Error code.
    pub error: u32,
}

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const CR4_PKE: u64 = 1 << 22;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
const RFLAGS_AC: u64 = 1 << 18;

const ERROR_PRESENT: u32 = 1 << 0;
const ERROR_WRITE: u32 = 1 << 1;
const ERROR_USER: u32 = 1 << 2;
const ERROR_RESERVED: u32 = 1 << 3;
const ERROR_FETCH: u32 = 1 << 4;
const ERROR_KEY: u32 = 1 << 5;

/// Lowest of the four bits of an entry that hold the protection key.
const KEY_SHIFT: u32 = 59;

/// The registers that a walk depends on.
#[derive(Clone, Copy, Debug)]
struct Mode {
    cr0: u64,
    cr3: u64,
    cr4: u64,
    efer: u64,
    user: bool,
    access_flag: bool,
    /// PKRU. 0, which forbids nothing, where protection keys do not apply.
    pkru: u32,
}

/// Returns the guest-physical address of `linear` on this vCPU, in its present state. The result holds only within the
/// page: the next linear page may be anywhere.
///
/// # Errors
/// The #PF that hardware would raise.
pub fn translate(vcpu: &impl Vcpu, memory: &GuestMemory, linear: u64, access: Access) -> Result<u64, PageFault> {
    translate_in(&Mode::of(vcpu), memory, linear, access)
}

fn translate_in(mode: &Mode, memory: &GuestMemory, linear: u64, access: Access) -> Result<u64, PageFault> {
    if mode.cr0 & CR0_PG == 0 {
        return Ok(linear & 0xffff_ffff);
    }
    if mode.efer & EFER_LMA != 0 {
        let levels = if mode.cr4 & CR4_LA57 != 0 { 5 } else { 4 };
        walk(mode, memory, linear, access, mode.cr3 & ADDRESS, levels)
    } else if mode.cr4 & CR4_PAE != 0 {
        walk_pae(mode, memory, linear & 0xffff_ffff, access)
    } else {
        walk_32(mode, memory, linear & 0xffff_ffff, access)
    }
}

/// As [`translate`], for the read of a descriptor table. The CPU reads these as a supervisor at every privilege level.
///
/// # Errors
/// The #PF that hardware would raise.
pub fn translate_for_system(vcpu: &impl Vcpu, memory: &GuestMemory, linear: u64) -> Result<u64, PageFault> {
    translate_in(&Mode { user: false, access_flag: false, ..Mode::of(vcpu) }, memory, linear, Access::Read)
}

/// The rights that the entries so far give together.
#[derive(Clone, Copy)]
struct Rights {
    writable: bool,
    user: bool,
    executable: bool,
}

impl Rights {
    const ALL: Self = Self { writable: true, user: true, executable: true };

    fn and(self, entry: u64) -> Self {
        Self {
            writable: self.writable && entry & WRITABLE != 0,
            user: self.user && entry & USER != 0,
            executable: self.executable && entry & NO_EXECUTE == 0,
        }
    }
}

impl Mode {
    fn of(vcpu: &impl Vcpu) -> Self {
        Self {
            cr0: vcpu.cr0(),
            cr3: vcpu.cr3(),
            cr4: vcpu.cr4(),
            efer: vcpu.efer(),
            user: vcpu.cpl() == 3,
            access_flag: vcpu.rflags() & RFLAGS_AC != 0,
            pkru: if vcpu.cr4() & CR4_PKE != 0 && vcpu.efer() & EFER_LMA != 0 { vcpu.pkru() } else { 0 },
        }
    }

    fn fault(&self, address: u64, access: Access, cause: u32) -> PageFault {
        let mut error = cause;
        if access == Access::Write {
            error |= ERROR_WRITE;
        }
        if self.user {
            error |= ERROR_USER;
        }
        if access == Access::Fetch && (self.cr4 & CR4_SMEP != 0 || self.no_execute()) {
            error |= ERROR_FETCH;
        }
        PageFault { address, error }
    }

    /// Whether entries have an XD bit: never with 32-bit paging, whatever EFER.NXE is (4.1.3).
    fn no_execute(&self) -> bool {
        self.efer & EFER_NXE != 0 && self.cr4 & CR4_PAE != 0
    }

    /// Whether the protection key of a leaf entry permits the access (SDM vol. 3A 4.6.2). Keys apply to data accesses to
    /// user pages, by the supervisor too.
    fn key_permits(&self, entry: u64, rights: Rights, access: Access) -> bool {
        let shift = (entry >> KEY_SHIFT & 0xf) << 1;
        let (all, writes) = (self.pkru >> shift & 1 != 0, self.pkru >> shift & 2 != 0);
        match access {
            _ if !rights.user => true,
            Access::Fetch => true,
            Access::Read => !all,
            Access::Write => !all && !(writes && (self.user || self.cr0 & CR0_WP != 0)),
        }
    }

    /// SDM vol. 3A 4.6.1.
    fn permits(&self, rights: Rights, access: Access) -> bool {
        if self.user && !rights.user {
            return false;
        }
        match access {
            Access::Fetch => rights.executable && !(self.cr4 & CR4_SMEP != 0 && rights.user && !self.user),
            _ if self.cr4 & CR4_SMAP != 0 && rights.user && !self.user && !self.access_flag => false,
            Access::Read => true,
            Access::Write => rights.writable || (!self.user && self.cr0 & CR0_WP == 0),
        }
    }
}

/// Reads an entry of 8 bytes. It is all ones where there is no memory.
fn entry_64(memory: &GuestMemory, gpa: u64) -> u64 {
    memory.read_u64(gpa).unwrap_or(u64::MAX)
}

/// Sets the accessed bit and, for a write, the dirty bit. Hardware does this before it uses a translation. Returns
/// false if the entry has changed meanwhile.
fn mark(memory: &GuestMemory, gpa: u64, entry: u64, bits: u64) -> bool {
    entry & bits == bits
        || memory.compare_exchange_u32(gpa, entry as u32, (entry | bits) as u32).is_ok_and(|exchanged| exchanged)
}

fn leaf_bits(access: Access) -> u64 {
    if access == Access::Write { ACCESSED | DIRTY } else { ACCESSED }
}

/// Returns the number of the first bit of a linear address that selects an entry of a table of 512 entries at this level,
/// from 1 on.
fn shift_of(level: u32) -> u32 {
    level.saturating_sub(1).saturating_mul(9).saturating_add(12)
}

/// Walks the tables of long mode, and the lower two levels of PAE: tables of 512 entries, large pages at levels 2 and
/// 3.
fn walk(
    mode: &Mode,
    memory: &GuestMemory,
    linear: u64,
    access: Access,
    root: u64,
    levels: u32,
) -> Result<u64, PageFault> {
    let fault = |cause| mode.fault(linear, access, cause);
    let unused = 64_u32.saturating_sub(shift_of(levels.saturating_add(1)));
    if levels >= 4 && ((linear << unused) as i64 >> unused) as u64 != linear {
        return Err(fault(0)); // not canonical: hardware would have raised #GP before it came here
    }
    let mut table = root;
    let mut rights = Rights::ALL;
    for level in (1..=levels).rev() {
        let shift = shift_of(level);
        let at = table.saturating_add((linear >> shift & 0x1ff) << 3);
        let entry = entry_64(memory, at);
        if entry & PRESENT == 0 {
            return Err(fault(0));
        }
        let large = level > 1 && entry & LARGE != 0;
        let reserved =
            entry == u64::MAX || entry & NO_EXECUTE != 0 && !mode.no_execute() || large && !matches!(level, 2 | 3);
        if reserved {
            return Err(fault(ERROR_PRESENT | ERROR_RESERVED));
        }
        rights = rights.and(entry);
        if level == 1 || large {
            if !mode.permits(rights, access) {
                return Err(fault(ERROR_PRESENT));
            }
            if !mode.key_permits(entry, rights, access) {
                return Err(fault(ERROR_PRESENT | ERROR_KEY));
            }
            if !mark(memory, at, entry, leaf_bits(access)) {
                return Err(fault(0)); // another vCPU is changing it: the guest will look again
            }
            let offset = !(u64::MAX << shift);
            return Ok(entry & ADDRESS & !offset | linear & offset);
        }
        if !mark(memory, at, entry, ACCESSED) {
            return Err(fault(0));
        }
        table = entry & ADDRESS;
    }
    Err(fault(0)) // not reached: level 1 returns
}

/// Walks PAE tables: four page-directory pointers, which have neither rights nor an accessed bit, then two levels.
fn walk_pae(mode: &Mode, memory: &GuestMemory, linear: u64, access: Access) -> Result<u64, PageFault> {
    let pointer = entry_64(memory, (mode.cr3 & 0xffff_ffe0).saturating_add((linear >> 30) << 3));
    if pointer & PRESENT == 0 {
        return Err(mode.fault(linear, access, 0));
    }
    walk(mode, memory, linear, access, pointer & ADDRESS, 2)
}

/// Walks tables of 32-bit paging: two levels of 1,024 entries, 4 MiB pages with CR4.PSE (and PSE-36).
fn walk_32(mode: &Mode, memory: &GuestMemory, linear: u64, access: Access) -> Result<u64, PageFault> {
    let fault = |cause| mode.fault(linear, access, cause);
    let entry_32 = |gpa| u64::from(memory.read_u32(gpa).unwrap_or(u32::MAX));
    let at = (mode.cr3 & 0xffff_f000).saturating_add((linear >> 22) << 2);
    let directory = entry_32(at);
    if directory & PRESENT == 0 {
        return Err(fault(0));
    }
    let large = directory & LARGE != 0 && mode.cr4 & CR4_PSE != 0;
    let rights = Rights::ALL.and(directory);
    let check = |rights: Rights, at: u64, entry: u64| {
        if !mode.permits(rights, access) {
            Err(fault(ERROR_PRESENT))
        } else if !mark(memory, at, entry, leaf_bits(access)) {
            Err(fault(0))
        } else {
            Ok(())
        }
    };
    if large {
        check(rights, at, directory)?;
        return Ok(directory & 0xffc0_0000 | (directory >> 13 & 0xff) << 32 | linear & 0x3f_ffff);
    }
    if !mark(memory, at, directory, ACCESSED) {
        return Err(fault(0));
    }
    let at = directory & 0xffff_f000 | (linear >> 12 & 0x3ff) << 2;
    let entry = entry_32(at);
    if entry & PRESENT == 0 {
        return Err(fault(0));
    }
    check(rights.and(entry), at, entry)?;
    Ok(entry & 0xffff_f000 | linear & 0xfff)
}

#[cfg(test)]
mod tests;
