//! An NVMe controller as a PCI function: its BAR, its memory, and its bit in the command register.

#![allow(unsafe_code, reason = "gives a device memory, its registers to a driver, and its right to master the bus")]

use crate::{mem, options, pci::Function};
use alloc::{format, string::String, vec::Vec};
use core::ptr::{self, NonNull};
use memory::{GuestMemory, Region, frames::OutOfMemory};
use nvme::{
    BusMaster, Config, Controller,
    dma::{Dma, DmaBuffer, PAGE, Segment},
    registers::{self, BAR_BYTES},
};
use spin::Mutex;

pub use nvme::registers::Mmio;

/// An I/O queue of a controller.
pub type Queue = nvme::IoQueue<Mmio, HostDma>;
/// The storage over an engine's queues.
pub type Storage = block::nvme::Nvme<Mmio, HostDma>;

/// Most bytes of the BAR that are mapped. The doorbells of one queue are within them with any usual stride.
const MAX_BAR: u64 = 1 << 20;
/// Entries of an I/O queue.
const DEPTH: u16 = 256;

/// Address and length of the registers of the controllers, for a panic.
static REGISTERS: Mutex<Vec<(u64, u32)>> = Mutex::new(Vec::new());

/// The bus master enable bit of a function that nobody else drives.
pub struct Bit(Function);

// SAFETY: a function cannot master the bus while this bit of its command register is 0. Nothing else sets the bit.
unsafe impl BusMaster for Bit {
    fn set(&mut self, on: bool) -> bool {
        self.0.set_bus_master(on)
    }
}

/// The hypervisor's memory. All of it is mapped at its physical address, which is also its bus address.
#[derive(Clone, Copy)]
pub struct HostDma;

// SAFETY: `mem::pages` returns zeroed pages that nobody else has, and never takes them back.
unsafe impl Dma for HostDma {
    fn allocate(&mut self, pages: usize) -> Option<DmaBuffer> {
        let bytes = pages.checked_mul(PAGE)?;
        let at = mem::pages(bytes as u64).ok()?;
        // SAFETY: as above. The addresses are the same for the CPU and the device.
        Some(unsafe { DmaBuffer::new(pointer(at)?, at, bytes) })
    }

    unsafe fn read(&self, from: u64, to: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise. `from` is memory, which is mapped at its bus address.
        unsafe { memory::copy::copy(to.as_ptr(), ptr::with_exposed_provenance(from as usize), len) };
    }

    unsafe fn write(&self, to: u64, from: NonNull<u8>, len: usize) {
        // SAFETY: as in `read`.
        unsafe { memory::copy::copy(ptr::with_exposed_provenance_mut(to as usize), from.as_ptr(), len) };
    }
}

/// Takes zeroed memory for data on its way between a guest and a device. It is at address 0 of the value. Nobody else has
/// it.
///
/// # Errors
/// There is no memory.
pub fn bounce(bytes: u64) -> Result<GuestMemory, OutOfMemory> {
    let at = mem::pages(bytes)?;
    let mut memory = GuestMemory::new();
    let region = Region { gpa: 0, size: bytes, host: ptr::with_exposed_provenance_mut(at as usize) };
    // SAFETY: the memory is mapped for ever. Only this value names it, and it forms no references.
    let added = unsafe { memory.add(region) };
    debug_assert!(added.is_ok(), "whole pages");
    Ok(memory)
}

/// A page for a device to write to. It is never given back, so a late write does no harm.
pub struct Page(u64);

impl Page {
    /// Its bytes.
    pub const BYTES: usize = PAGE;

    /// Takes one, of zeroes. Returns `None` if there is no memory.
    pub fn take() -> Option<Self> {
        mem::pages(PAGE as u64).ok().map(Self)
    }

    /// Its first `len` bytes as a segment of a request. Returns `None` if it is shorter.
    pub fn segment(&self, len: usize) -> Option<Segment> {
        // SAFETY: the page is memory that nobody else has, for ever. Its bytes are accessed by raw pointers only.
        (len <= PAGE).then(|| unsafe { Segment::new(self.0, len as u32) })
    }

    /// Copies its first bytes out.
    pub fn copy_to(&self, into: &mut [u8]) {
        let len = into.len().min(PAGE);
        // SAFETY: both are at least that long, and the page is no Rust object.
        unsafe { memory::copy::copy(into.as_mut_ptr(), ptr::with_exposed_provenance(self.0 as usize), len) };
    }
}

fn pointer(at: u64) -> Option<NonNull<u8>> {
    NonNull::new(ptr::with_exposed_provenance_mut(at as usize))
}

/// A controller that works, the engine's queue if one was asked for, and where the controller is.
pub type Opened = (Controller<Mmio, Bit>, Option<Queue>, Place);

/// Takes an NVMe controller. `with_queue`: it gets an I/O queue; otherwise it can only be asked what it is.
///
/// # Errors
/// Its BAR is unusable, there is no memory for it, or it does not answer.
pub fn open(function: Function, with_queue: bool) -> Result<Opened, String> {
    let (at, len) = function.take_registers(BAR_BYTES, MAX_BAR)?;
    let base = pointer(at).ok_or("BAR 0 is at address 0")?;
    // SAFETY: this is BAR 0 of a function that says it is an NVMe controller. It is mapped, uncached, for ever.
    // Nobody else drives the function.
    let registers = unsafe { Mmio::new(base.cast(), len as u32) };
    let default = Config::default();
    let config = Config {
        queues: u16::from(with_queue),
        depth: DEPTH,
        max_segments: block::nvme::MAX_SEGMENTS,
        command_time: options::nvme_timeout().unwrap_or(default.command_time),
        ..default
    };
    let (controller, queues) =
        Controller::new(registers, Bit(function), &mut HostDma, config).map_err(|e| format!("{e}"))?;
    REGISTERS.lock().push((at, len as u32));
    Ok((controller, queues.into_iter().next(), Place { function, base: at }))
}

/// Where a controller is.
pub struct Place {
    function: Function,
    /// The address of BAR 0.
    base: u64,
}

impl Place {
    /// Whether there is a controller whose BAR 0 is not what it was: one that was taken out has come back, or another one is in
    /// its place. Gives the BAR its address and returns true, if so.
    pub fn take_return(&self) -> bool {
        let is_back = self.function.has_lost_bar(0, self.base);
        if is_back {
            self.function.place_bar(0, self.base);
        }
        is_back
    }
}

/// Notifies all controllers that power may go, and does not wait. For a panic: no other core runs any more.
pub fn notify_abrupt_shutdown() {
    // The core that held the lock was parked in the boot. Then there are no guests and nothing to lose.
    let Some(all) = REGISTERS.try_lock() else { return };
    for &(base, len) in all.iter() {
        // SAFETY: the registers were mapped in `open`. Every other core is parked, and this one does not return to what
        // it did.
        if let Some(registers) = pointer(base).map(|base| unsafe { Mmio::new(base.cast(), len) }) {
            registers::notify_abrupt_shutdown(&registers);
        }
    }
}
