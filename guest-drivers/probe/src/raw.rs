//! A virtio device with one queue whose rings are written by hand, for what no driver does. The rings are in the arena.

use bare::memory::{self, ARENA};
use bare::virtio_pci::{Parts, common};

use crate::time;

/// Addresses of the descriptor table, the available ring and the used ring: a page each.
const RINGS: [u64; 3] = [ARENA, ARENA + 0x1000, ARENA + 0x2000];
/// End of the rings. They begin at [`ARENA`].
pub const END: u64 = ARENA + 0x3000;
/// Address of the buffers.
pub const BUFFERS: u64 = ARENA + 0x4000;
/// Most descriptors of the queue: as many as fit into a page.
const MOST: u16 = 256;
/// VIRTIO_F_VERSION_1, in the upper half.
const VERSION_1: u32 = 1;

const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 0x40;

/// VIRTIO_F_INDIRECT_DESC, in the lower half of the features.
pub const INDIRECT_DESC: u32 = 1 << 28;

/// Descriptor flag: another one follows.
pub const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A buffer: its address, its length, and whether the device writes it.
pub type Buffer = (u64, u32, bool);

/// A queue, and how many requests it has been offered.
pub struct Raw {
    parts: Parts,
    queue: u16,
    /// Where it is notified.
    pub doorbell: u64,
    size: u16,
    offered: u16,
}

/// Resets a device, and waits until the reset is done.
pub fn reset(parts: &Parts) -> Result<(), &'static str> {
    memory::write8(parts.common + common::DEVICE_STATUS, 0);
    let done = time::wait(|| memory::read8(parts.common + common::DEVICE_STATUS) == 0);
    if done { Ok(()) } else { Err("the device is not reset") }
}

impl Raw {
    /// Resets the device, and starts it with one queue and these features of the lower half.
    pub fn open(parts: Parts, queue: u16, features: u32) -> Result<Self, &'static str> {
        reset(&parts)?;
        let status = |value| memory::write8(parts.common + common::DEVICE_STATUS, value);
        status(ACKNOWLEDGE | DRIVER);
        for (select, half) in [(0, features), (1, VERSION_1)] {
            memory::write32(parts.common + common::DRIVER_FEATURE_SELECT, select);
            memory::write32(parts.common + common::DRIVER_FEATURE, half);
        }
        status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        memory::clear(ARENA, END - ARENA);
        memory::write16(parts.common + common::QUEUE_SELECT, queue);
        let size = memory::read16(parts.common + common::QUEUE_SIZE).min(MOST);
        memory::write16(parts.common + common::QUEUE_SIZE, size);
        for (register, address) in
            [common::QUEUE_DESC, common::QUEUE_DRIVER, common::QUEUE_DEVICE].into_iter().zip(RINGS)
        {
            memory::write32(parts.common + register, address as u32);
            memory::write32(parts.common + register + 4, (address >> 32) as u32);
        }
        memory::write16(parts.common + common::QUEUE_ENABLE, 1);
        status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
        Ok(Self { parts, queue, doorbell: parts.doorbell(queue), size: size.max(1), offered: 0 })
    }

    /// Writes a chain of descriptors, from `first` on, into a table.
    pub fn describe(table: u64, first: u16, buffers: &[Buffer]) {
        for (n, &(address, length, written)) in (first..).zip(buffers) {
            let last = usize::from(n - first) + 1 == buffers.len();
            let flags = if last { 0 } else { NEXT } | if written { WRITE } else { 0 };
            entry(table, n, address, length, flags);
        }
    }

    /// Writes a chain of descriptors into the queue's own table.
    pub fn chain(&self, first: u16, buffers: &[Buffer]) {
        Self::describe(RINGS[0], first, buffers);
    }

    /// Writes a descriptor that stands for an indirect table of `count` descriptors.
    pub fn indirect(&self, at: u16, table: u64, count: u32) {
        entry(RINGS[0], at, table, count * 16, INDIRECT);
    }

    /// Offers the chain that begins at descriptor `head`, without a notification.
    pub fn offer(&mut self, head: u16) {
        let avail = RINGS[1];
        memory::write16(avail + 4 + 2 * u64::from(self.offered % self.size), head);
        self.offered = self.offered.wrapping_add(1);
        memory::write16(avail + 2, self.offered);
    }

    /// Notifies the device.
    pub fn ring(&self) {
        self.parts.ring(self.doorbell, self.queue);
    }

    /// Whether all requests that were offered have been completed.
    pub fn is_idle(&self) -> bool {
        memory::read16(RINGS[2] + 2) == self.offered
    }

    /// Waits until all requests that were offered have been completed.
    pub fn finish(&self) -> Result<(), &'static str> {
        if time::wait(|| self.is_idle()) { Ok(()) } else { Err("a request was not completed") }
    }

    /// Whether the device asks for a reset.
    pub fn needs_reset(&self) -> bool {
        memory::read8(self.parts.common + common::DEVICE_STATUS) & NEEDS_RESET != 0
    }
}

fn entry(table: u64, n: u16, address: u64, length: u32, flags: u16) {
    let at = table + u64::from(n) * 16;
    memory::write64(at, address);
    memory::write32(at + 8, length);
    memory::write16(at + 12, flags);
    memory::write16(at + 14, n + 1);
}
