//! A driver for a virtio-net device (virtio-pci 1.x; virtio 1.3, 4.1). It allows misuse of every part of the device.

use bare::cpu;
use bare::memory::{self, ARENA};
use bare::virtio_pci::{NO_VECTOR, Parts, common};

use crate::report::Report;

/// Descriptors of a queue as this driver sets it up.
pub const SIZE: u16 = 16;
/// VIRTIO_F_VERSION_1.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_INDIRECT_DESC.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Device status bit (2.1): the features are accepted.
pub const FEATURES_OK: u8 = 8;
/// Device status bit: the driver is ready.
const DRIVER_OK: u8 = 4;
/// Device status bit: the device gave up.
pub const NEEDS_RESET: u8 = 64;
/// Descriptor flag (2.7.5): the chain continues.
pub const NEXT: u16 = 1;
/// Descriptor flag: the buffer is device-writable.
pub const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// The receive queue of the first pair.
pub const RX: u16 = 0;
/// The transmit queue of the first pair.
pub const TX: u16 = 1;
/// MSI-X entry used for transmit completions.
pub const TX_VECTOR: u16 = 1;

/// Bytes of a virtio-net header (5.1.6, 12 bytes) and a broadcast frame of 60 bytes.
pub const FRAME_BYTES: u32 = 12 + 60;

/// The addresses of a queue's three parts, and its size, as they are given to the device.
#[derive(Clone, Copy)]
pub struct Rings {
    /// Descriptor table.
    pub desc: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
    /// Size.
    pub size: u16,
}

/// A network device.
pub struct Net {
    /// The addresses of its parts.
    pub parts: Parts,
    /// Its rings and buffers.
    memory: u64,
}

impl Net {
    /// Network devices on bus 0, at most two.
    pub fn find() -> [Option<Self>; 2] {
        let mut found = Parts::of_nets().zip([ARENA, ARENA + 0x10000]);
        [found.next(), found.next()].map(|found| found.map(|(parts, memory)| Self { parts, memory }))
    }

    /// Rings that follow the rules.
    pub fn rings(&self, queue: u16) -> Rings {
        let base = self.memory + u64::from(queue) * 0x4000;
        Rings { desc: base, avail: base + 0x1000, used: base + 0x2000, size: SIZE }
    }

    /// A buffer that follows the rules, 4 KiB.
    pub fn buffer(&self) -> u64 {
        self.memory + 0x8000
    }

    /// Device status.
    pub fn status(&self) -> u8 {
        memory::read8(self.parts.common + common::DEVICE_STATUS)
    }

    fn set_status(&self, status: u8) {
        memory::write8(self.parts.common + common::DEVICE_STATUS, status);
    }

    /// Resets the device and waits until the reset is done. Returns whether it is.
    pub fn reset(&self) -> bool {
        self.set_status(0);
        wait(|| self.status() == 0)
    }

    /// The features that the device offers.
    pub fn offered(&self) -> u64 {
        let half = |select| {
            memory::write32(self.parts.common + common::DEVICE_FEATURE_SELECT, select);
            u64::from(memory::read32(self.parts.common + common::DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    /// Resets the device and accepts `features`. Returns whether the device agreed.
    pub fn negotiate(&self, features: u64) -> bool {
        if !self.reset() {
            return false;
        }
        self.set_status(1);
        self.set_status(3);
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            memory::write32(self.parts.common + common::DRIVER_FEATURE_SELECT, select);
            memory::write32(self.parts.common + common::DRIVER_FEATURE, half);
        }
        self.set_status(3 | FEATURES_OK);
        self.status() & FEATURES_OK != 0
    }

    /// Configures a queue of the device, without a check of the rules.
    pub fn set_queue(&self, queue: u16, rings: Rings) {
        let set = |register, value: u64| {
            memory::write32(self.parts.common + register, value as u32);
            memory::write32(self.parts.common + register + 4, (value >> 32) as u32);
        };
        memory::write16(self.parts.common + common::QUEUE_SELECT, queue);
        memory::write16(self.parts.common + common::QUEUE_SIZE, rings.size);
        let vector = if queue == TX { TX_VECTOR } else { NO_VECTOR };
        memory::write16(self.parts.common + common::QUEUE_MSIX_VECTOR, vector);
        set(common::QUEUE_DESC, rings.desc);
        set(common::QUEUE_DRIVER, rings.avail);
        set(common::QUEUE_DEVICE, rings.used);
        memory::write16(self.parts.common + common::QUEUE_ENABLE, 1);
    }

    /// The size of a queue that the device reports.
    pub fn size(&self, queue: u16) -> u16 {
        memory::write16(self.parts.common + common::QUEUE_SELECT, queue);
        memory::read16(self.parts.common + common::QUEUE_SIZE)
    }

    /// Sets DRIVER_OK.
    pub fn start(&self) {
        self.set_status(3 | FEATURES_OK | DRIVER_OK);
    }

    /// Starts the device with these features, with `tx` for its transmit queue and with empty rings. Returns whether
    /// the device agreed to the features.
    pub fn up(&self, features: u64, tx: Rings) -> bool {
        memory::clear(self.memory, 0x10000);
        let agreed = self.negotiate(features);
        self.set_queue(RX, self.rings(RX));
        self.set_queue(TX, tx);
        self.start();
        agreed
    }

    /// Starts the device by the rules.
    pub fn up_well(&self) -> bool {
        self.up(VERSION_1, self.rings(TX))
    }

    /// Writes descriptor `index` of a table.
    pub fn describe(table: u64, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let at = table + u64::from(index) * 16;
        memory::write64(at, address);
        memory::write64(at + 8, u64::from(length) | u64::from(flags) << 32 | u64::from(next) << 48);
    }

    /// Puts a chain's head into slot `slot` of the available ring.
    pub fn offer(&self, queue: u16, slot: u16, head: u16) {
        memory::write16(self.rings(queue).avail + 4 + u64::from(slot % SIZE) * 2, head);
    }

    /// Sets the available index and notifies.
    pub fn publish(&self, queue: u16, index: u16) {
        memory::write16(self.rings(queue).avail + 2, index);
        self.parts.ring(self.parts.doorbell(queue), queue);
    }

    /// Used index of a queue.
    pub fn used(&self, queue: u16) -> u16 {
        memory::read16(self.rings(queue).used + 2)
    }

    /// Writes a broadcast frame with its header into the buffer. The frame has a local experimental type (IEEE 802,
    /// 0x88B5).
    pub fn write_frame(&self) {
        let at = self.buffer();
        memory::clear(at, 128);
        for octet in 0..6 {
            memory::write8(at + 12 + octet, 0xff);
            memory::write8(at + 18 + octet, if octet == 0 { 2 } else { 0xee });
        }
        memory::write16(at + 24, 0xb588);
    }

    /// Sends that frame. `sent` is the number of frames sent since the start. Returns whether the device took it.
    pub fn send(&self, sent: u16) -> bool {
        self.write_frame();
        Self::describe(self.rings(TX).desc, 0, self.buffer(), FRAME_BYTES, 0, 0);
        self.offer(TX, sent, 0);
        self.publish(TX, sent.wrapping_add(1));
        wait(|| self.used(TX) == sent.wrapping_add(1))
    }

    /// Sets the MSI-X entry of transmit completions.
    pub fn set_message(&self, address: u64, data: u32) {
        self.parts.set_message(TX_VECTOR, address, data);
    }

    /// Enables or disables MSI-X.
    pub fn enable_msix(&self, on: bool) {
        self.parts.control_msix(on, false);
    }

    /// Whether the device works. If not, the report says so.
    pub fn check(&self, report: &Report) -> bool {
        let works = self.up_well() && self.send(0);
        if !works {
            report.broken(format_args!("the network device does not take a frame, status {:#x}", self.status()));
        }
        works
    }
}

/// Waits until `done`, for two seconds at most with a 2 GHz time stamp counter. Returns whether it is.
pub fn wait(mut done: impl FnMut() -> bool) -> bool {
    let start = cpu::tsc();
    loop {
        if done() {
            return true;
        }
        if cpu::tsc().wrapping_sub(start) > 4_000_000_000 {
            return false;
        }
        core::hint::spin_loop();
    }
}
