//! The hypervisor's own memory: page frames, page tables with W^X, stacks with guard pages.
//!
//! Memory is mapped at its physical address, writable and not executable. Each part of the image is mapped with only the
//! access that it needs. Stacks are mapped a second time in a separate region, where the page below each stack is not
//! mapped.
//!
//! The tables that are made here map all memory. They are in use during the boot and after a panic. In between each core
//! has tables of its own, which map what its role needs: see `maps.rs`.

#![allow(unsafe_code, reason = "switches page tables, names the linker's symbols")]

use crate::arch::MAX_CORES;
use alloc::vec::Vec;
use core::{
    ptr,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};
use memory::{
    frames::{Frames, OutOfMemory},
    maps::{self, Layout, Piece, Range, Role},
    reader::Reader,
    tables::{Access, Format, FrameSource, MapError, Tables},
};
use spin::Mutex;
use trace::{capture, histogram::Histogram, published::Published, queues::QueueHistograms, ring::Slot};
use x86_64::{
    PhysAddr,
    registers::{
        control::{Cr0, Cr0Flags, Cr3, Cr3Flags, Cr4, Cr4Flags},
        model_specific::{Efer, EferFlags},
    },
    structures::paging::PhysFrame,
};

/// Free physical memory.
pub static FRAMES: Mutex<Frames> = Mutex::new(Frames::new());

/// The tables that map all memory.
static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

/// The root of [`TABLES`], without the lock. 0 before there are any.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// What there is to map.
pub static LAYOUT: Mutex<Layout> = Mutex::new(Layout::new());

/// First address of the stacks, in the upper half of the address space.
const STACKS: u64 = 0xffff_a000_0000_0000;
/// Bytes of address space for each core's stacks.
const SLOT: u64 = 1 << 20;
/// Bytes of address space for the stacks of all cores.
const ALL_STACKS: u64 = SLOT.saturating_mul(MAX_CORES as u64);
/// Bytes of a core's main stack. The engine needs the most: a whole visit to a queue, with copy and switch.
const STACK: u64 = 128 << 10;
/// Bytes of the boot core's main stack. It is larger because the boot core makes the large tables of engines and
/// guests.
const BOOT_STACK: u64 = 512 << 10;
/// Bytes of each interrupt stack.
pub const INTERRUPT_STACK: u64 = 16 << 10;

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static control_start: u8;
    static control_end: u8;
    static data_start: u8;
    static data_end: u8;
    static boot_link_address: u64;
}

/// Returns the start and the end (exclusive) of the image.
pub fn image() -> (u64, u64) {
    (&raw const image_start as u64, &raw const image_end as u64)
}

/// Returns how far the image is above the addresses in its file, modulo 2^64.
pub fn moved_by() -> u64 {
    // SAFETY: a constant of `start.s`. Nobody writes there.
    let link_address = unsafe { boot_link_address };
    image().0.wrapping_sub(link_address)
}

/// Returns the start and the end (exclusive) of the image's code.
pub fn text() -> (u64, u64) {
    (&raw const text_start as u64, &raw const text_end as u64)
}

/// Replaces the boot tables. Maps `ranges` as memory, `devices` as registers, and the screen.
///
/// # Errors
/// There is no memory for tables, or ranges overlap.
pub fn enable_paging(ranges: &[Range], devices: &[Range], screen: Option<Range>) -> Result<(), MapError> {
    let (start, _) = image();
    let (ts, te) = text();
    let rodata = (&raw const rodata_start as u64, &raw const rodata_end as u64);
    let data = (&raw const data_start as u64, &raw const data_end as u64);
    let pieces = {
        let mut layout = LAYOUT.lock();
        // The boot part holds the stack and the GDT that are in use until the boot core has its own ones.
        let boot = ((start, ts), Access::RW);
        layout.control_image = (&raw const control_start as u64, &raw const control_end as u64);
        layout.image = [boot, ((ts, te), Access::RX), (rodata, Access::R), (data, Access::RW)].into();
        layout.memory = ranges.into();
        layout.devices = devices.into();
        layout.screen = screen;
        // There are no guests yet, so this is everything.
        layout.base(Role::Control)
    };
    let tables = tables_of(&pieces)?;
    let root = tables.root();
    *TABLES.lock() = Some(tables);
    ROOT.store(root, Ordering::Release);
    // SAFETY: the new tables map the image with the stack in use, the heap and all memory at the same addresses.
    unsafe { load_tables(root) };
    Ok(())
}

/// Makes tables that map these pieces.
///
/// # Errors
/// There is no memory for tables, or pieces overlap.
pub fn tables_of(pieces: &[Piece]) -> Result<Tables, MapError> {
    maps::tables(pieces, has_gigabyte_pages(), &mut *FRAMES.lock())
}

/// Frames below 4 GiB, which the boot tables map.
struct LowFrames;

impl FrameSource for LowFrames {
    fn frame(&mut self) -> Result<u64, OutOfMemory> {
        let mut frames = FRAMES.lock();
        let frame = frames.host(4096, 4096)?;
        if frame < 4 << 30 { Ok(frame) } else { Err(OutOfMemory { bytes: 4096, free: 0 }) }
    }
}

/// Makes memory above 4 GiB readable, which the boot tables do not map.
///
/// # Safety
/// The boot tables are in use, and nothing else changes them as long as the value is used.
pub unsafe fn boot_reader() -> Reader<impl FrameSource> {
    let root = Cr3::read().0.start_address().as_u64();
    // SAFETY: `start.s` made four-level tables in the image, which they map at its physical address. So they do with the
    // frames below 4 GiB. The caller guarantees the rest.
    Reader::new(unsafe { Tables::existing(Format::Host, root) }, LowFrames)
}

/// Whether the CPU has pages of 1 GiB.
pub fn has_gigabyte_pages() -> bool {
    let cpuid = raw_cpuid::CpuId::new();
    cpuid.get_extended_processor_and_feature_identifiers().is_some_and(|f| f.has_1gib_pages())
}

/// Loads page tables on this core.
///
/// # Safety
/// The tables at `root` map everything that this core uses, at the same addresses as before.
pub unsafe fn load_tables(root: u64) {
    // SAFETY: NX is enabled before the CPU uses tables with NX bits. WP makes read-only pages hold in ring 0 too. The
    // caller guarantees the rest.
    unsafe {
        Efer::update(|f| f.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::update(|f| f.insert(Cr0Flags::WRITE_PROTECT));
        Cr3::write(PhysFrame::containing_address(PhysAddr::new(root)), Cr3Flags::empty());
        Cr4::update(|f| f.insert(Cr4Flags::PAGE_GLOBAL));
    }
}

/// Returns the physical address of the tables that map all memory, or 0 before there are any.
pub fn root() -> u64 {
    ROOT.load(Ordering::Acquire)
}

/// Maps all memory on this core again. The machine ends.
pub fn map_everything() {
    let root = root();
    if root != 0 {
        // SAFETY: the tables map what every core's own tables map, at the same addresses: those were made of the same
        // layout and of the same stacks.
        unsafe { load_tables(root) };
    }
}

/// Maps device registers. Call it only before the cores have maps of their own, or after [`map_everything`].
///
/// # Errors
/// There is no memory for tables, or the range is mapped already.
pub fn map_device(start: u64, len: u64) -> Result<(), MapError> {
    let mut tables = TABLES.lock();
    let Some(t) = tables.as_mut() else { return Err(MapError::Misaligned(start)) };
    t.map(start, start, len, Access::DEVICE, &mut *FRAMES.lock())?;
    LAYOUT.lock().devices.push((start, start.saturating_add(len)));
    Ok(())
}

/// Makes one page below 1 MiB executable, or takes that back. Other cores start there. Such a page can be changed
/// alone: memory around it is mapped by 4 KiB pages, because page 0 is not mapped.
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

/// The tops of a core's stacks.
#[derive(Clone, Copy, Debug)]
pub struct Stacks {
    /// Top of the main stack, for all other host code.
    pub main: u64,
    /// Tops of the stacks for NMI, double fault and machine check.
    pub interrupt: [u64; 3],
}

/// Allocates a core's stacks. The page below each stays unmapped.
///
/// # Errors
/// There is no memory.
pub fn stacks(core: usize) -> Result<Stacks, MapError> {
    let mut tables = TABLES.lock();
    let mut frames = FRAMES.lock();
    let Some(t) = tables.as_mut() else { return Err(MapError::Misaligned(0)) };
    let mut at = STACKS.saturating_add((core as u64).saturating_mul(SLOT));
    let mut top = |bytes: u64| {
        at = at.saturating_add(4096);
        let backing = frames.host(bytes, 4096).map_err(MapError::OutOfMemory)?;
        t.map(at, backing, bytes, Access::RW, &mut *frames)?;
        at = at.saturating_add(bytes);
        Ok(at)
    };
    Ok(Stacks {
        main: top(if core == 0 { BOOT_STACK } else { STACK })?,
        interrupt: [top(INTERRUPT_STACK)?, top(INTERRUPT_STACK)?, top(INTERRUPT_STACK)?],
    })
}

/// Returns the pieces that map a core's stacks.
pub fn pieces_of_stacks(core: usize) -> Vec<Piece> {
    let tables = TABLES.lock();
    let start = STACKS.saturating_add((core as u64).saturating_mul(SLOT));
    let page = |at| {
        let (to, ..) = tables.as_ref()?.lookup(at)?;
        Some(Piece { at, to, bytes: 4096, access: Access::RW })
    };
    (start..start.saturating_add(SLOT)).step_by(4096).filter_map(page).collect()
}

/// Whether `address` is on some core's stack for NMIs, its top included.
pub fn is_nmi_stack(address: u64) -> bool {
    let Some(offset) = address.checked_sub(STACKS).filter(|&offset| offset < ALL_STACKS) else {
        return false;
    };
    let main = if offset / SLOT == 0 { BOOT_STACK } else { STACK };
    // A guard page, the main stack, a guard page.
    let start = main.saturating_add(2 * 4096);
    (start.saturating_add(1)..=start.saturating_add(INTERRUPT_STACK)).contains(&(offset % SLOT))
}

/// Whether `address` is on some core's stack, or on the boot stack.
pub fn is_stack(address: u64) -> bool {
    let (start, _) = image();
    let on_boot_stack = (start..text().0).contains(&address);
    let offset = address.wrapping_sub(STACKS);
    let mapped = TABLES.try_lock().is_none_or(|t| t.as_ref().is_some_and(|t| t.lookup(address).is_some()));
    on_boot_stack || offset < ALL_STACKS && mapped
}

/// Returns the core whose guard page contains `address`: the address is in the core's stack region, but on no stack.
pub fn guard_page(address: u64) -> Option<usize> {
    let offset = address.checked_sub(STACKS)?;
    (offset < ALL_STACKS && !is_stack(address)).then_some((offset / SLOT) as usize)
}

/// Returns the bytes that the hypervisor keeps for itself: its image, and everything that it has taken since the start.
pub fn used() -> u64 {
    let (start, end) = image();
    end.saturating_sub(start).saturating_add(FRAMES.lock().used_by_host())
}

/// Takes `bytes` of zeroed memory for the hypervisor, aligned to a page. It is never given back. Guests' cores and idle
/// cores do not map it.
///
/// # Errors
/// There is no memory.
pub fn pages(bytes: u64) -> Result<u64, OutOfMemory> {
    let at = FRAMES.lock().host(bytes, 4096)?;
    // SAFETY: the memory was free, and it is mapped at its physical address on the control core, which calls this.
    unsafe {
        ptr::with_exposed_provenance_mut::<u8>(at as usize).write_bytes(0, bytes.next_multiple_of(4096) as usize)
    };
    Ok(at)
}

/// Takes zeroed memory for the caller alone. It is never given back.
///
/// # Errors
/// There is no memory.
pub fn own_bytes(bytes: u64) -> Result<&'static mut [u8], OutOfMemory> {
    let at = pages(bytes)?;
    // SAFETY: the memory is mapped and zeroed. Only this slice names it, for ever.
    Ok(unsafe { core::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(at as usize), bytes as usize) })
}

/// Takes zeroed memory for data that several cores use. It is never given back.
///
/// # Errors
/// There is no memory.
pub fn shared_bytes(bytes: u64) -> Result<&'static [AtomicU8], OutOfMemory> {
    let at = pages(bytes)?;
    // SAFETY: the memory is mapped, aligned to a page and zeroed. Only this slice names it, for ever.
    Ok(unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(at as usize), bytes as usize) })
}

/// Takes zeroed memory for `count` words, as [`shared_bytes`] does.
///
/// # Errors
/// There is no memory.
pub fn shared_words(count: u64) -> Result<&'static [AtomicU32], OutOfMemory> {
    let at = pages(count.saturating_mul(size_of::<AtomicU32>() as u64))?;
    // SAFETY: as in `shared_bytes`. A page is aligned for words, and words of zeroes are valid.
    Ok(unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(at as usize), count as usize) })
}

/// A core's memory for its trace: records, captured frames, a few words, histograms, and the physical addresses of all of them.
pub struct TraceMemory {
    pub slots: &'static [Slot],
    pub captures: &'static [Slot<{ capture::WORDS }>],
    pub published: &'static Published,
    pub histograms: &'static [Histogram],
    pub queues: &'static [QueueHistograms],
    pub range: Range,
}

/// Takes zeroed memory for so many records, captured frames, histograms and queues of a core's trace. It is never given back.
///
/// # Errors
/// There is no memory.
pub fn trace(slots: u64, captures: u64, histograms: u64, queues: u64) -> Result<TraceMemory, OutOfMemory> {
    let mut bytes = 0_u64;
    // Returns the offset of so many values of so many bytes, behind those before.
    let mut place = |count: u64, size: usize| {
        let offset = bytes;
        bytes = bytes.saturating_add(count.saturating_mul(size as u64));
        offset
    };
    let offsets = [
        place(slots, size_of::<Slot>()),
        place(captures, size_of::<Slot<{ capture::WORDS }>>()),
        place(1, size_of::<Published>()),
        place(histograms, size_of::<Histogram>()),
        place(queues, size_of::<QueueHistograms>()),
    ];
    let at = pages(bytes)?;
    let [at_slots, at_captures, at_published, at_histograms, at_queues] =
        offsets.map(|offset| at.saturating_add(offset) as usize);
    // SAFETY: as in `shared_words`: all of these types are words. Each part begins behind the one before, at a multiple of a
    // word's size, and all end within the pages.
    let (slots, captures, published, histograms, queues) = unsafe {
        (
            core::slice::from_raw_parts(ptr::with_exposed_provenance(at_slots), slots as usize),
            core::slice::from_raw_parts(ptr::with_exposed_provenance(at_captures), captures as usize),
            &*ptr::with_exposed_provenance::<Published>(at_published),
            core::slice::from_raw_parts(ptr::with_exposed_provenance(at_histograms), histograms as usize),
            core::slice::from_raw_parts(ptr::with_exposed_provenance(at_queues), queues as usize),
        )
    };
    Ok(TraceMemory {
        slots,
        captures,
        published,
        histograms,
        queues,
        range: (at, at.saturating_add(bytes.next_multiple_of(4096))),
    })
}
