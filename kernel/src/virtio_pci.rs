//! Virtio devices of the machine, if sidecore itself runs in a virtual machine: their registers and their memory, for the
//! drivers of network devices and of disks.

#![allow(unsafe_code, reason = "gives a device memory, and its registers to a driver")]

use crate::{mem, pci::Function};
use alloc::{format, string::String};
use core::ptr::{self, NonNull};
use drivers::pci::{Address, ConfigSpace};
use virtio_drivers::{
    BufferDirection, Hal, PhysAddr,
    transport::pci::{
        PciTransport,
        bus::{Command, ConfigurationAccess, DeviceFunction, PciRoot},
    },
};

/// PCI vendor of virtio devices (virtio 1.3, 4.1.2).
pub const VIRTIO: u16 = 0x1af4;

/// Lets a virtio device master the bus, and returns the way to its registers.
///
/// # Errors
/// It has no usable registers.
pub fn transport(found: &Function) -> Result<PciTransport, String> {
    let at = found.at;
    let mut root = PciRoot::new(Access(found.space()));
    let function = DeviceFunction { bus: at.bus, device: at.device, function: at.function };
    let (_, command) = root.get_status_command(function);
    root.set_command(function, command | Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE);
    PciTransport::new::<Memory, _>(&mut root, function).map_err(|e| format!("{e}"))
}

/// Configuration space for the virtio crate.
struct Access(ConfigSpace);

fn address(f: DeviceFunction) -> Address {
    Address { bus: f.bus, device: f.device, function: f.function }
}

impl ConfigurationAccess for Access {
    fn read_word(&self, function: DeviceFunction, offset: u8) -> u32 {
        // SAFETY: this runs at boot, when only the control core uses configuration space. ECAM was mapped before the
        // scan.
        unsafe { self.0.read(address(function), offset.into()) }
    }

    fn write_word(&mut self, function: DeviceFunction, offset: u8, data: u32) {
        // SAFETY: as above. The crate writes only registers of the device that it drives.
        unsafe { self.0.write(address(function), offset.into(), data) }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self(self.0)
    }
}

/// Memory for the virtio crate. Device and driver use the same addresses: all memory is mapped at its physical address.
pub struct Memory;

// SAFETY: the frames are the hypervisor's own. They are zeroed, never handed out twice, and mapped at their physical
// address. Registers are mapped uncached before they are handed out.
unsafe impl Hal for Memory {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let at = mem::pages((pages as u64).saturating_mul(4096)).unwrap_or(0);
        (at, NonNull::new(ptr::with_exposed_provenance_mut(at as usize)).unwrap_or(NonNull::dangling()))
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        // Memory is handed out once and never taken back. This loses little, because a device is set up once.
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, size: usize) -> NonNull<u8> {
        let (first, end) = (at & !0xfff, at.saturating_add(size as u64).checked_next_multiple_of(4096).unwrap_or(at));
        for page in (first..end).step_by(4096) {
            // This fails if the page is mapped already: several structures may share a page.
            let _ = mem::map_device(page, 4096);
        }
        NonNull::new(ptr::with_exposed_provenance_mut(at as usize)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        // The driver shares only buffers from `dma_alloc`.
        buffer.as_ptr().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
