//! Guest-physical memory by its address. Own page tables map the first 8 GiB one to one, and a movable window of 2 MiB
//! reaches whatever lies above.
//!
//! The program's own objects all lie in the image; what is read and written here never does, so that no Rust object
//! changes behind the compiler's back. An address in the image is refused by a panic.

#![allow(unsafe_code, reason = "memory by address")]

use core::arch::asm;

use crate::cpu;

/// Memory of no Rust object, for rings, buffers and page tables: 2 MiB from here on, behind the image.
pub const ARENA: u64 = 0x180_0000;
/// Page tables stand at the end of it.
const TABLES: u64 = ARENA + 0x1f_0000;
/// What is mapped one to one.
const MAPPED: u64 = 8 << 30;
/// Where the window is.
const WINDOW: u64 = 511 << 30;
const PAGE_2M: u64 = 2 << 20;

const PRESENT_WRITE: u64 = 3;
const LARGE: u64 = 1 << 7;

unsafe extern "C" {
    static image_start: u8;
    static bss_end: u8;
}

/// Whether an access is of no business to the compiler.
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
            // SAFETY: the address is mapped, see `window`, and belongs to no Rust object, see `check`.
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

/// Zeroes memory of no Rust object.
pub fn clear(address: u64, length: u64) {
    for at in (address..address + length).step_by(8) {
        write64(at, 0);
    }
}

/// Puts own page tables in place of the loader's.
pub fn init() {
    // The loader's tables map the image's surroundings, and the arena is 8 MiB behind its start.
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
    // SAFETY: the first 8 GiB, where everything lies that the program uses, are mapped one to one.
    unsafe { cpu::set_cr3(pml4) };
}

/// The linear address of a guest-physical one; moves the window if it is beyond what is mapped one to one.
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
