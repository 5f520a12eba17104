//! Finds the parts of a virtio device (virtio 1.3, 4.1.4), and its MSI-X table (PCI 3.0, 6.8.2).

use crate::memory;
use crate::pci::{self, Function};

/// Vendor and device ID of a modern virtio network device.
const NET: u32 = 0x1041_1af4;
/// Vendor and device ID of a modern virtio block device.
const BLOCK: u32 = 0x1042_1af4;

const VENDOR_SPECIFIC: u8 = 0x09;
const MSIX: u8 = 0x11;
/// cfg_type of the common configuration.
const COMMON: u32 = 1;
/// cfg_type of the notifications.
const NOTIFY: u32 = 2;
/// cfg_type of the device's own configuration.
const DEVICE: u32 = 4;

/// The value for "no MSI-X entry" (4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xffff;

/// Registers of the common configuration (4.1.4.3).
#[allow(missing_docs, reason = "the names are the registers")]
pub mod common {
    pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
    pub const DEVICE_FEATURE: u64 = 0x04;
    pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
    pub const DRIVER_FEATURE: u64 = 0x0c;
    pub const DEVICE_STATUS: u64 = 0x14;
    pub const CONFIG_GENERATION: u64 = 0x15;
    pub const QUEUE_SELECT: u64 = 0x16;
    pub const QUEUE_SIZE: u64 = 0x18;
    pub const QUEUE_MSIX_VECTOR: u64 = 0x1a;
    pub const QUEUE_ENABLE: u64 = 0x1c;
    pub const QUEUE_NOTIFY_OFF: u64 = 0x1e;
    pub const QUEUE_DESC: u64 = 0x20;
    pub const QUEUE_DRIVER: u64 = 0x28;
    pub const QUEUE_DEVICE: u64 = 0x30;
}

/// The addresses of a device's parts.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Its PCI function.
    pub function: Function,
    /// Address of the common configuration.
    pub common: u64,
    /// Address of the device's own configuration.
    pub device: u64,
    notify: u64,
    notify_is_port: bool,
    notify_multiplier: u32,
    msix_table: u64,
    msix_pending: u64,
    msix_capability: u8,
}

impl Parts {
    /// Network devices on bus 0.
    pub fn of_nets() -> impl Iterator<Item = Self> {
        Self::of(NET)
    }

    /// Block devices on bus 0.
    pub fn of_disks() -> impl Iterator<Item = Self> {
        Self::of(BLOCK)
    }

    fn of(id: u32) -> impl Iterator<Item = Self> {
        pci::bus_0().filter(move |function| function.read(0) == id).filter_map(Self::open)
    }

    /// Finds a device's parts. Enables its memory, ports and DMA.
    fn open(function: Function) -> Option<Self> {
        let (mut common, mut device, mut notify, mut msix) = (None, None, None, None);
        for (at, id) in function.capabilities() {
            let place = |bar: u32, offset: u32| {
                let (base, io) = function.bar(bar as u8 & 7);
                (base + u64::from(offset), io)
            };
            let place_at = |at: u8| place(function.read(at + 4), function.read(at + 8));
            match (id, function.read(at) >> 24) {
                (VENDOR_SPECIFIC, COMMON) => common = Some(place_at(at).0),
                (VENDOR_SPECIFIC, DEVICE) => device = Some(place_at(at).0),
                (VENDOR_SPECIFIC, NOTIFY) if notify.is_none() => notify = Some((place_at(at), function.read(at + 16))),
                (MSIX, _) => {
                    let (table, pending) = (function.read(at + 4), function.read(at + 8));
                    msix = Some((place(table & 7, table & !7).0, place(pending & 7, pending & !7).0, at));
                }
                _ => {}
            }
        }
        let ((notify, notify_is_port), notify_multiplier) = notify?;
        let (msix_table, msix_pending, msix_capability) = msix?;
        // Memory, I/O and bus master on, INTx off.
        function.write(0x04, 0x407);
        Some(Self {
            function,
            common: common?,
            device: device?,
            notify,
            notify_is_port,
            notify_multiplier,
            msix_table,
            msix_pending,
            msix_capability,
        })
    }

    /// Ports of the device, if its notifications are in I/O space.
    pub fn io_ports(&self) -> Option<u64> {
        self.notify_is_port.then_some(self.notify & !0xff)
    }

    /// Address or port of a queue's notifications (4.1.4.4).
    pub fn doorbell(&self, queue: u16) -> u64 {
        memory::write16(self.common + common::QUEUE_SELECT, queue);
        let offset = memory::read16(self.common + common::QUEUE_NOTIFY_OFF);
        self.notify + u64::from(offset) * u64::from(self.notify_multiplier)
    }

    /// Notifies the device of new buffers in a queue, through its [`Parts::doorbell`] (4.1.5.2).
    pub fn ring(&self, doorbell: u64, queue: u16) {
        if self.notify_is_port { crate::cpu::out16(doorbell as u16, queue) } else { memory::write16(doorbell, queue) }
    }

    /// Address of the MSI-X table. An entry's address and data, 12 bytes, hold what is written.
    pub fn msix_table(&self) -> u64 {
        self.msix_table
    }

    /// Sets a table entry and unmasks it.
    pub fn set_message(&self, entry: u16, address: u64, data: u32) {
        let at = self.msix_table + u64::from(entry) * 16;
        self.mask_entry(entry, true);
        memory::write32(at, address as u32);
        memory::write32(at + 4, (address >> 32) as u32);
        memory::write32(at + 8, data);
        self.mask_entry(entry, false);
    }

    /// Masks or unmasks a table entry.
    pub fn mask_entry(&self, entry: u16, masked: bool) {
        memory::write32(self.msix_table + u64::from(entry) * 16 + 12, masked.into());
    }

    /// Whether an entry's interrupt is pending until the entry is unmasked.
    pub fn pending(&self, entry: u16) -> bool {
        memory::read32(self.msix_pending + u64::from(entry / 32) * 4) & 1 << (entry % 32) != 0
    }

    /// Sets MSI-X enable and the function mask in the message control.
    pub fn control_msix(&self, enabled: bool, masked: bool) {
        let control = self.function.read(self.msix_capability) & !(3 << 30);
        self.function.write(self.msix_capability, control | u32::from(enabled) << 31 | u32::from(masked) << 30);
    }
}
