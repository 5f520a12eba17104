//! The hypervisor's own memory: page frames, heap, page tables with W^X, stacks with guard pages.
//!
//! All of memory is mapped at its physical address, writable and not executable, the image with the access each of
//! its parts needs. Stacks are mapped once more in a region of their own, where the page below each is not.

#![allow(unsafe_code, reason = "switches page tables, claims the heap, names the linker's symbols")]

use crate::arch::MAX_CORES;
use alloc::vec::Vec;
use core::ptr;
use memory::{
    frames::{Frames, OutOfMemory},
    tables::{Access, Format, MapError, Tables},
};
use spin::Mutex;
use talc::{TalcLock, source::Manual};
use x86_64::{
    PhysAddr,
    registers::{
        control::{Cr0, Cr0Flags, Cr3, Cr3Flags, Cr4, Cr4Flags},
        model_specific::{Efer, EferFlags},
    },
    structures::paging::PhysFrame,
};

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Manual> = TalcLock::new(Manual);

/// Bytes of heap: configuration, ACPI facts, guests' device models and tables. Packets never pass through it, but for those of
/// the load to be counted, whose guests have 8 MiB each time.
const HEAP_BYTES: u64 = if cfg!(feature = "count") { 64 << 20 } else { 4 << 20 };

/// Free physical memory.
pub static FRAMES: Mutex<Frames> = Mutex::new(Frames::new());

static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

/// Where the stacks are mapped: the top quarter of the address space, one slot of 1 MiB a core.
const STACKS: u64 = 0xffff_a000_0000_0000;
const SLOT: u64 = 1 << 20;
/// Bytes of a core's main stack. The engine's needs most: a whole visit to a queue, copy and switch included.
const STACK: u64 = 128 << 10;
/// Bytes of the boot core's main stack: it makes the large tables of engines and guests.
const BOOT_STACK: u64 = 512 << 10;
/// Bytes of each interrupt stack.
const INTERRUPT_STACK: u64 = 16 << 10;

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static data_start: u8;
    static data_end: u8;
}

/// The image's first and last address (exclusive).
pub fn image() -> (u64, u64) {
    (&raw const image_start as u64, &raw const image_end as u64)
}

/// The image's code.
pub fn text() -> (u64, u64) {
    (&raw const text_start as u64, &raw const text_end as u64)
}

/// Gives the heap its memory. Nothing may allocate before.
///
/// # Errors
/// There is none below 4 GiB, which is all that the boot tables map.
pub fn start_heap() -> Result<(), OutOfMemory> {
    let at = FRAMES.lock().host(HEAP_BYTES, 4096)?;
    if at + HEAP_BYTES > 4 << 30 {
        return Err(OutOfMemory { bytes: HEAP_BYTES, free: 0 });
    }
    // SAFETY: the frames were free and are now the heap's alone, mapped at their physical address: the boot tables
    // cover the first 4 GiB and `host` gives the lowest memory there is.
    unsafe { HEAP.lock().claim(ptr::with_exposed_provenance_mut(at as usize), HEAP_BYTES as usize) };
    Ok(())
}

/// Replaces the boot tables: `memory` are the ranges to map as memory, `devices` as registers.
///
/// # Errors
/// No memory for tables, or ranges that collide.
pub fn enable_paging(ranges: &[(u64, u64)], devices: &[(u64, u64)]) -> Result<(), MapError> {
    let gigabyte = has_gigabyte_pages();
    let mut frames = FRAMES.lock();
    let mut t = Tables::new(Format::Host, gigabyte, &mut *frames).map_err(MapError::OutOfMemory)?;
    let (start, end) = image();
    let (ts, te) = text();
    let rodata = (&raw const rodata_start as u64, &raw const rodata_end as u64);
    let data = (&raw const data_start as u64, &raw const data_end as u64);
    // The boot part holds the stack and the GDT that are in use until the boot core has its own.
    let boot = (start, ts);
    for ((s, e), access) in [(boot, Access::RW), ((ts, te), Access::RX), (rodata, Access::R), (data, Access::RW)] {
        t.map(s, s, e - s, access, &mut *frames)?;
    }
    for &(s, e) in &without(ranges, (start, end)) {
        // Page 0 stays unmapped, so that a null pointer faults.
        let s = s.max(4096);
        if s < e {
            t.map(s, s, e - s, Access::RW, &mut *frames)?;
        }
    }
    for &(s, e) in devices {
        t.map(s, s, e - s, Access::DEVICE, &mut *frames)?;
    }
    drop(frames);
    let root = t.root();
    *TABLES.lock() = Some(t);
    // SAFETY: the new tables map the image with the stack in use, the heap and all memory at the same addresses.
    unsafe { load_tables(root) };
    Ok(())
}

/// Whether the CPU has pages of 1 GiB.
pub fn has_gigabyte_pages() -> bool {
    let cpuid = raw_cpuid::CpuId::new();
    cpuid.get_extended_processor_and_feature_identifiers().is_some_and(|f| f.has_1gib_pages())
}

/// Sorted, merged page ranges without `hole`. Firmware maps overlap, and pages shared by two entries are mapped once.
fn without(ranges: &[(u64, u64)], hole: (u64, u64)) -> Vec<(u64, u64)> {
    let mut sorted: Vec<_> = ranges.iter().map(|&(s, e)| (s & !0xfff, e.next_multiple_of(0x1000))).collect();
    sorted.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut from = 0;
    for (s, e) in sorted {
        let s = s.max(from);
        from = from.max(e);
        for (s, e) in [(s, e.min(hole.0)), (s.max(hole.1), e)] {
            if s < e {
                out.push((s, e));
            }
        }
    }
    out
}

/// Makes the hypervisor's tables this core's.
///
/// # Safety
/// `root` are tables that map everything this core is using, at the same addresses.
pub unsafe fn load_tables(root: u64) {
    // SAFETY: NX must be on before tables with NX bits are walked, WP makes read-only pages hold for ring 0; the
    // caller vouches for the tables.
    unsafe {
        Efer::update(|f| f.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::update(|f| f.insert(Cr0Flags::WRITE_PROTECT));
        Cr3::write(PhysFrame::containing_address(PhysAddr::new(root)), Cr3Flags::empty());
        Cr4::update(|f| f.insert(Cr4Flags::PAGE_GLOBAL));
    }
}

/// Physical address of the hypervisor's page tables.
pub fn root() -> u64 {
    TABLES.lock().as_ref().map_or(0, Tables::root)
}

/// Maps device registers.
///
/// # Errors
/// No memory for tables, or mapped already.
pub fn map_device(start: u64, len: u64) -> Result<(), MapError> {
    let mut tables = TABLES.lock();
    let Some(t) = tables.as_mut() else { return Err(MapError::Misaligned(start)) };
    t.map(start, start, len, Access::DEVICE, &mut *FRAMES.lock())
}

/// Makes one page below 1 MiB executable, or not: other cores take their first steps there. Such pages are always
/// mapped one by one, because page 0 is not mapped.
///
/// # Errors
/// The page is not mapped.
pub fn set_executable(page: u64, executable: bool) -> Result<(), MapError> {
    let mut tables = TABLES.lock();
    let Some(t) = tables.as_mut() else { return Err(MapError::Misaligned(page)) };
    t.protect(page, if executable { Access::RWX } else { Access::RW })?;
    x86_64::instructions::tlb::flush(x86_64::VirtAddr::new(page));
    Ok(())
}

/// A core's stacks: the main one's top, and the tops of the three interrupt stacks.
#[derive(Clone, Copy, Debug)]
pub struct Stacks {
    /// Top of the stack that host code runs on.
    pub main: u64,
    /// Tops for NMI, double fault and machine check.
    pub interrupt: [u64; 3],
}

/// Allocates a core's stacks, the page below each left unmapped.
///
/// # Errors
/// No memory.
pub fn stacks(core: usize) -> Result<Stacks, MapError> {
    let mut tables = TABLES.lock();
    let mut frames = FRAMES.lock();
    let Some(t) = tables.as_mut() else { return Err(MapError::Misaligned(0)) };
    let mut at = STACKS + core as u64 * SLOT;
    let mut top = |bytes: u64| {
        at += 4096;
        let backing = frames.host(bytes, 4096).map_err(MapError::OutOfMemory)?;
        t.map(at, backing, bytes, Access::RW, &mut *frames)?;
        at += bytes;
        Ok(at)
    };
    Ok(Stacks {
        main: top(if core == 0 { BOOT_STACK } else { STACK })?,
        interrupt: [top(INTERRUPT_STACK)?, top(INTERRUPT_STACK)?, top(INTERRUPT_STACK)?],
    })
}

/// Whether `address` is on some core's stack, or on the boot stack.
pub fn is_stack(address: u64) -> bool {
    let (start, _) = image();
    let on_boot_stack = (start..text().0).contains(&address);
    let offset = address.wrapping_sub(STACKS);
    let mapped = TABLES.try_lock().is_none_or(|t| t.as_ref().is_some_and(|t| t.lookup(address).is_some()));
    on_boot_stack || offset < MAX_CORES as u64 * SLOT && mapped
}

/// Whether the heap has its memory.
pub fn heap_ready() -> bool {
    FRAMES.try_lock().is_none_or(|f| f.used_by_host() >= HEAP_BYTES)
}

/// The core in whose stack region `address` is without being on a stack: it ran into a guard page.
pub fn guard_page(address: u64) -> Option<usize> {
    let offset = address.checked_sub(STACKS)?;
    (offset < MAX_CORES as u64 * SLOT && !is_stack(address)).then_some((offset / SLOT) as usize)
}

/// Bytes that the hypervisor keeps for itself: its image and everything taken for it since.
pub fn used() -> u64 {
    let (start, end) = image();
    end - start + FRAMES.lock().used_by_host()
}

/// Zeroed memory for the hypervisor, `bytes` long, aligned to a page, never given back.
///
/// # Errors
/// There is none.
pub fn pages(bytes: u64) -> Result<u64, OutOfMemory> {
    let at = FRAMES.lock().host(bytes, 4096)?;
    // SAFETY: free memory until now, mapped at its physical address.
    unsafe {
        ptr::with_exposed_provenance_mut::<u8>(at as usize).write_bytes(0, bytes.next_multiple_of(4096) as usize)
    };
    Ok(at)
}
