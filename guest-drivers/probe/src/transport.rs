//! A transport for the queues of the crate `virtio-drivers`, and the memory of their rings.
//!
//! The crate's own PCI transport supports neither MSI-X nor notifications in I/O space (virtio 1.3, 4.1). The crate's
//! `should_notify` compares indices as if they did not wrap. [`Pci::notify_if_wanted`] follows 2.7.10.1 instead.

#![allow(unsafe_code, reason = "memory shared with the device")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use bare::memory::{self, ARENA};
use bare::virtio_pci::{NO_VECTOR, Parts, common};
use bitflags::bitflags;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Error, Hal, PAGE_SIZE, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{apic, time};

bitflags! {
    /// The features that the driver accepts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Interrupts and notifications by index (2.7.10).
        const EVENT_IDX = 1 << 29;
        /// Virtio 1.0 or later.
        const VERSION_1 = 1 << 32;
    }
}

/// Vectors of the two MSI-X entries that a driver uses.
pub const VECTORS: [u8; 2] = [0x71, 0x72];
/// End of the rings, as an offset in the arena. They begin at offset 0.
const RINGS_END: usize = 0x10_0000;

/// Address of a message to this CPU (SDM vol. 3A 11.11.1).
pub const MESSAGES: u64 = 0xfee0_0000;

/// Allocates pages for rings from the arena, one after another. All are free again when the last was given back.
pub struct Arena;

static TAKEN_PAGES: AtomicUsize = AtomicUsize::new(0);
static NEXT_PAGE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: pages are aligned and mapped one to one. No Rust object is in them. Each is given out once until all have
// come back.
unsafe impl Hal for Arena {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let first = NEXT_PAGE.fetch_add(pages, Ordering::Relaxed);
        TAKEN_PAGES.fetch_add(pages, Ordering::Relaxed);
        assert!((first + pages) * PAGE_SIZE <= RINGS_END, "no room for rings");
        let address = ARENA + (first * PAGE_SIZE) as u64;
        memory::clear(address, (pages * PAGE_SIZE) as u64);
        (address, NonNull::new(address as *mut u8).expect("the arena is not at 0"))
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        if TAKEN_PAGES.fetch_sub(pages, Ordering::Relaxed) == pages {
            NEXT_PAGE.store(0, Ordering::Relaxed);
        }
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("only the crate's own PCI transport asks")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().cast::<u8>() as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// A queue's rings and its doorbell, and the available index at the last notification.
#[derive(Clone, Copy, Default)]
struct Rings {
    size: u32,
    avail: u64,
    used: u64,
    doorbell: u64,
    told: u16,
}

/// The transport of a device with up to two queues.
pub struct Pci {
    parts: Parts,
    kind: DeviceType,
    vectors: [u16; 2],
    rings: [Rings; 2],
    event_idx: bool,
    kicks: u64,
}

impl Pci {
    /// Begins to initialize the device with these features. `vectors`: the MSI-X entry of each queue, 0 or 1, or
    /// [`NO_VECTOR`].
    pub fn begin(parts: Parts, kind: DeviceType, features: Features, vectors: [u16; 2]) -> Self {
        let mut transport = Self { parts, kind, vectors, rings: [Rings::default(); 2], event_idx: false, kicks: 0 };
        let agreed = transport.begin_init(features);
        transport.event_idx = agreed.contains(Features::EVENT_IDX);
        parts.control_msix(true, false);
        for (entry, vector) in (0..).zip(VECTORS) {
            parts.set_message(entry, MESSAGES | apic::id() << 12, vector.into());
        }
        transport
    }

    /// Whether EVENT_IDX was agreed on.
    pub fn event_idx(&self) -> bool {
        self.event_idx
    }

    /// The addresses of its parts.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Notifications sent so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Resets the device and waits until the reset is done. Returns whether it is.
    pub fn reset(&mut self) -> bool {
        self.set_status(DeviceStatus::empty());
        time::wait(|| self.get_status().is_empty())
    }

    fn set_address(&self, register: u64, value: u64) {
        memory::write32(self.parts.common + register, value as u32);
        memory::write32(self.parts.common + register + 4, (value >> 32) as u32);
    }

    fn select(&self, queue: u16) {
        memory::write16(self.parts.common + common::QUEUE_SELECT, queue);
    }

    /// Notifies the device of new requests in a queue, if the device wants that (2.7.10.1).
    pub fn notify_if_wanted(&mut self, queue: u16) {
        const NO_NOTIFY: u16 = 1;
        let Some(rings) = self.rings.get_mut(usize::from(queue)) else { return };
        // The device may stop polling at this moment. Then either it sees the new index, or we see that it wants a
        // notification (2.7.13.4.1).
        fence(Ordering::SeqCst);
        let new = memory::read16(rings.avail + 2);
        let old = core::mem::replace(&mut rings.told, new);
        let wanted = if self.event_idx {
            let event = memory::read16(rings.used + 4 + 8 * u64::from(rings.size));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            memory::read16(rings.used) & NO_NOTIFY == 0
        };
        if wanted {
            self.kicks += 1;
            self.parts.ring(rings.doorbell, queue);
        }
    }
}

impl Transport for Pci {
    fn device_type(&self) -> DeviceType {
        self.kind
    }

    fn read_device_features(&mut self) -> u64 {
        let half = |select| {
            memory::write32(self.parts.common + common::DEVICE_FEATURE_SELECT, select);
            u64::from(memory::read32(self.parts.common + common::DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    fn write_driver_features(&mut self, features: u64) {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            memory::write32(self.parts.common + common::DRIVER_FEATURE_SELECT, select);
            memory::write32(self.parts.common + common::DRIVER_FEATURE, half);
        }
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.select(queue);
        memory::read16(self.parts.common + common::QUEUE_SIZE).into()
    }

    fn notify(&mut self, queue: u16) {
        self.parts.ring(self.parts.doorbell(queue), queue);
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(memory::read8(self.parts.common + common::DEVICE_STATUS).into())
    }

    fn set_status(&mut self, status: DeviceStatus) {
        memory::write8(self.parts.common + common::DEVICE_STATUS, status.bits() as u8);
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, queue: u16, size: u32, table: PhysAddr, avail: PhysAddr, used: PhysAddr) {
        self.select(queue);
        memory::write16(self.parts.common + common::QUEUE_SIZE, size as u16);
        let vector = self.vectors.get(usize::from(queue)).copied().unwrap_or(NO_VECTOR);
        memory::write16(self.parts.common + common::QUEUE_MSIX_VECTOR, vector);
        self.set_address(common::QUEUE_DESC, table);
        self.set_address(common::QUEUE_DRIVER, avail);
        self.set_address(common::QUEUE_DEVICE, used);
        memory::write16(self.parts.common + common::QUEUE_ENABLE, 1);
        if let Some(rings) = self.rings.get_mut(usize::from(queue)) {
            *rings = Rings { size, avail, used, doorbell: self.parts.doorbell(queue), told: 0 };
        }
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        self.select(queue);
        memory::read16(self.parts.common + common::QUEUE_ENABLE) != 0
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        memory::read8(self.parts.common + common::CONFIG_GENERATION).into()
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        let mut value = T::new_zeroed();
        for (at, byte) in (self.parts.device + offset as u64..).zip(value.as_mut_bytes()) {
            *byte = memory::read8(at);
        }
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}
