//! Accesses guest-physical memory by its address. The guest's own page tables map the first 8 GiB one to one. A movable
//! window of 2 MiB gives access to addresses above.
//!
//! All of the program's own objects are in the image. These functions never access the image, so they change no Rust
//! object without the compiler's knowledge. They panic at an address in the image.

#![allow(unsafe_code, reason = "memory by address")]

use core::arch::asm;

use crate::cpu;

/// Address of the arena: 2 MiB behind the image, for rings, buffers and page tables. No Rust object is in it.
pub const ARENA: u64 = 0x180_0000;
/// Address of the page tables, at the end of the arena.
pub(crate) const TABLES: u64 = ARENA + 0x1f_0000;
/// End of the memory that is mapped one to one.
const MAPPED: u64 = 8 << 30;
/// Linear address of the window.
const WINDOW: u64 = 511 << 30;
const PAGE_2M: u64 = 2 << 20;

const PRESENT_WRITE: u64 = 3;
const LARGE: u64 = 1 << 7;

unsafe extern "C" {
    static image_start: u8;
    static bss_end: u8;
}

/// Panics if an access touches the image.
fn check(address: u64, size: u64) {
    let (start, end) = (&raw const image_start as u64, &raw const bss_end as u64);
    assert!(address.saturating_add(size) <= start || address >= end, "{address:#x} is in the image");
}

macro_rules! access {
    ($read:ident $write:ident $type:ty, $text:literal) => {
        /// Loads from a guest-physical address, in one access.
        pub fn $read(address: u64) -> $type {
            let value: $type;
            let at = window(address);
            check(at, size_of::<$type>() as u64);
            // SAFETY: the address is mapped (`window`) and belongs to no Rust object (`check`).
            unsafe { asm!(concat!("mov ", $text, ", [{a}]"), v = out(reg) value, a = in(reg) at, options(nostack, preserves_flags, readonly)) };
            value
        }

        /// Stores to a guest-physical address, in one access.
        pub fn $write(address: u64, value: $type) {
            let at = window(address);
            check(at, size_of::<$type>() as u64);
            // SAFETY: as for the load.
            unsafe { asm!(concat!("mov [{a}], ", $text), v = in(reg) value, a = in(reg) at, options(nostack, preserves_flags)) };
        }
    };
}

access!(read16 write16 u16, "{v:x}");
access!(read32 write32 u32, "{v:e}");
access!(read64 write64 u64, "{v:r}");

/// Loads a byte from a guest-physical address.
pub fn read8(address: u64) -> u8 {
    let value: u8;
    let at = window(address);
    check(at, 1);
    // SAFETY: as for the others.
    unsafe { asm!("mov {}, [{}]", out(reg_byte) value, in(reg) at, options(nostack, preserves_flags, readonly)) };
    value
}

/// Stores a byte to a guest-physical address.
pub fn write8(address: u64, value: u8) {
    let at = window(address);
    check(at, 1);
    // SAFETY: as for the others.
    unsafe { asm!("mov [{}], {}", in(reg) at, in(reg_byte) value, options(nostack, preserves_flags)) };
}

/// Zeroes memory outside the image.
pub fn clear(address: u64, length: u64) {
    for at in (address..address + length).step_by(8) {
        write64(at, 0);
    }
}

/// Replaces the loader's page tables by the guest's own.
pub fn init() {
    // The loader's tables map the memory around the image. The arena is 8 MiB behind the image's start.
    clear(TABLES, 0xb000);
    let (pml4, pdpt, window, directories) = (TABLES, TABLES + 0x1000, TABLES + 0x2000, TABLES + 0x3000);
    write64(pml4, pdpt | PRESENT_WRITE);
    for gibibyte in 0..8 {
        let directory = directories + gibibyte * 0x1000;
        write64(pdpt + gibibyte * 8, directory | PRESENT_WRITE);
        for page in 0..512 {
            write64(directory + page * 8, ((gibibyte << 30) + page * PAGE_2M) | PRESENT_WRITE | LARGE);
        }
    }
    write64(pdpt + (WINDOW >> 30) * 8, window | PRESENT_WRITE);
    // SAFETY: the first 8 GiB are mapped one to one. Everything that the program uses is in them.
    unsafe { cpu::set_cr3(pml4) };
}

/// Linear address of the GiB whose page directory a program may set.
pub const FREE_GIBIBYTE: u64 = 510 << 30;

/// Sets the page directory of [`FREE_GIBIBYTE`].
pub fn set_free_directory(directory: u64) {
    write64(TABLES + 0x1000 + (FREE_GIBIBYTE >> 30) * 8, directory | PRESENT_WRITE);
}

/// Returns the linear address of a guest-physical address. If that is not mapped one to one, moves the window to it.
fn window(address: u64) -> u64 {
    if address < MAPPED {
        return address;
    }
    let page = address & !(PAGE_2M - 1);
    let entry = TABLES + 0x2000;
    write64(entry, page | PRESENT_WRITE | LARGE);
    cpu::invalidate(WINDOW);
    WINDOW + (address - page)
}

/// Widest guest-physical address in bits (CPUID 0x80000008).
pub fn address_bits() -> u32 {
    if cpu::cpuid(0x8000_0000).eax >= 0x8000_0008 { (cpu::cpuid(0x8000_0008).eax & 0xff).clamp(36, 52) } else { 36 }
}
