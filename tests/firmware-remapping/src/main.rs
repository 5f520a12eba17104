//! A multiboot2 program for a scenario: firmware that hands the machine over with its IOMMU on. GRUB starts it, and its first
//! module is sidecore's ELF file. It switches on each unit that ACPI names, says on COM1 what the units read back, and starts
//! sidecore as GRUB would: in 32-bit mode, with the same information without that module.
//!
//! A word `remapping=WORD` on its command line is for it. All others are sidecore's.
//!
//! - `remapping=nothing`: tables that let no device reach any memory, and no interrupt pass.
//! - `remapping=identity`: tables by which each device reaches all memory at its own address. Intel's units only.
//!
//! Its own memory, with the tables, is reserved in the memory map, as a firmware's would be.

#![no_main]
#![no_std]
#![allow(unsafe_code, reason = "it is a machine's firmware")]

extern crate alloc;

mod console;
mod handover;
mod units;

use boot::acpi::{Memory, Tables, dmar, ivrs};
use boot::information::Information;
use core::{panic::PanicInfo, ptr, slice};
use talc::{TalcLock, source::Manual};

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Manual> = TalcLock::new(Manual);

/// Bytes of the heap, for the list of units.
const HEAP_BYTES: usize = 64 << 10;

#[repr(align(4096))]
struct Heap([u8; HEAP_BYTES]);

static mut HEAP_MEMORY: Heap = Heap([0; HEAP_BYTES]);

/// Memory at its physical address, below 4 GiB: the boot's page tables map that.
struct Below4Gib;

impl Memory for Below4Gib {
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        let mapped = address != 0 && address.checked_add(len)? <= 4 << 30;
        // SAFETY: `start.s` maps everything below 4 GiB, and nobody writes to ACPI's tables.
        mapped.then(|| unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), len as usize) })
    }
}

/// The entry from the crate `boot`'s `start.s`.
#[unsafe(no_mangle)]
extern "C" fn start_rust(magic: u32, information: u32) -> ! {
    assert_eq!(magic, boot::MULTIBOOT2_MAGIC, "not started by multiboot2");
    // SAFETY: the memory is this program's, and only the heap has it.
    unsafe { HEAP.lock().claim((&raw mut HEAP_MEMORY.0).cast(), HEAP_BYTES) };
    let start = ptr::with_exposed_provenance::<u8>(information as usize);
    // SAFETY: GRUB has put its information there, with its length in front. It is mapped, and nobody writes to it.
    let bytes = unsafe { slice::from_raw_parts(start, start.cast::<u32>().read() as usize) };
    let info = Information::new(bytes).expect("GRUB's information is unusable");
    let words = info.command_line().unwrap_or_default();
    let word = words.split_whitespace().find_map(|word| word.strip_prefix("remapping="));
    let tables = Tables::new(info.rsdp().expect("no RSDP"), &Below4Gib).expect("no ACPI tables");
    let mut list = tables.find(*b"DMAR").map(dmar).unwrap_or_default();
    list.extend(tables.find(*b"IVRS").map(ivrs).unwrap_or_default());
    assert!(!list.is_empty(), "ACPI names no IOMMU");
    for unit in list {
        units::switch_on(unit, word == Some("identity"));
    }
    handover::start(bytes, info)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    console::print(format_args!("firmware: {info}\n"));
    loop {
        x86_64::instructions::hlt();
    }
}
