//! A virtio device as a PCI function: identity, capabilities, BARs, MSI-X, and the transport's registers. The engine
//! has the device itself. The two share [`Shared`].
//!
//! Follows virtio 1.3 ch. 4.1. There is only the modern interface, no transitional one.
//!
//! - BAR0 (memory) has common configuration, ISR, device configuration, MSI-X table and pending bits, most on a
//!   separate page.
//! - BAR1 has a 4-byte notification word per queue. It is in I/O space or in memory ([`NotifyBar`]).
//! - There is no INTx. Without MSI-X a driver must poll the ISR.
//!
//! The bus-master bit is ignored: after DRIVER_OK the engine may use the guest's memory.

mod common;

use virtio::{config::VECTORS, msix::ENTRY_BYTES, shared::Shared};

pub use common::{Common, Status};

use crate::{
    lapic::Message,
    layout,
    pci::{
        config::{Bar, Command, ConfigSpace, Identity},
        function::{Function, Place},
    },
    reason::Reason,
};

const VENDOR: u16 = 0x1af4;
/// PCI device ID of a modern virtio device of type 0. The type is added to it (4.1.2).
const FIRST_DEVICE: u16 = 0x1040;

const CAPABILITY_VENDOR: u8 = 0x09;
const CAPABILITY_MSIX: u8 = 0x11;

/// cfg_type of the capabilities (4.1.4).
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const ISR: u8 = 3;
const DEVICE: u8 = 4;
const PCI: u8 = 5;

/// Parts of BAR0.
const COMMON_AT: u32 = 0x0000;
const ISR_AT: u32 = 0x1000;
const DEVICE_AT: u32 = 0x2000;
const TABLE_AT: u32 = 0x3000;
const PENDING_AT: u32 = 0x3800;
const PART_MASK: u64 = 0x3000;

/// Bytes from one queue's notification word to the next. Drivers write 2 or 4 bytes: rust-hypervisor-firmware writes 4.
const NOTIFY_MULTIPLIER: u32 = 4;

/// Offsets within the PCI configuration access capability (4.1.4.9).
const WINDOW_BAR: usize = 4;
const WINDOW_OFFSET: usize = 8;
const WINDOW_LENGTH: usize = 12;
const WINDOW_DATA: usize = 16;

/// Message control of MSI-X, within its capability.
const MESSAGE_CONTROL: usize = 2;
const MSIX_ENABLE: u8 = 0x80;
const MSIX_FUNCTION_MASK: u8 = 0x40;

/// Where a function has its notification words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyBar {
    /// In I/O space. A notification is a cheap exit: the exit gives the port, and nothing is decoded.
    Io,
    /// In memory, for drivers that do not know I/O space. A notification is a nested fault, and its instruction is decoded.
    Memory,
}

impl NotifyBar {
    /// Returns kind, length and first address of BAR1 of PCI device `device`.
    const fn bar1(self, device: u8) -> (Bar, u32, u32) {
        match self {
            Self::Io => (Bar::Io, layout::VIRTIO_BAR1_SIZE, layout::bar1(device)),
            Self::Memory => (Bar::Memory32, layout::VIRTIO_BAR1_MEMORY_SIZE, layout::bar1_memory(device)),
        }
    }
}

/// A virtio device's PCI function.
pub struct VirtioPci<'a> {
    shared: &'a Shared,
    device: u8,
    notify: NotifyBar,
    config: ConfigSpace,
    common: Common,
    /// Offset of the MSI-X capability. The next field is that of the PCI configuration access capability.
    msix: usize,
    window: usize,
    refused: u64,
}

impl<'a> VirtioPci<'a> {
    /// Makes a function for PCI device number `device` (1 to 31), with its notification words in I/O space.
    #[must_use]
    pub fn new(shared: &'a Shared, device: u8) -> Self {
        Self::with_notify(shared, device, NotifyBar::Io)
    }

    /// Makes a function for PCI device number `device` (1 to 31). Its BARs have that device's addresses in [`layout`].
    #[must_use]
    pub fn with_notify(shared: &'a Shared, device: u8, notify: NotifyBar) -> Self {
        let kind = shared.device().device_type;
        let id = FIRST_DEVICE.wrapping_add(kind);
        let mut config = ConfigSpace::new(&Identity {
            vendor: VENDOR,
            device: id,
            revision: 1,
            // Only these device types have a specific class: network, mass storage, other communication device.
            class: match kind {
                1 => 0x02_0000,
                2 => 0x01_8000,
                3 => 0x07_8000,
                _ => 0xff_0000,
            },
            subsystem_vendor: VENDOR,
            subsystem: id,
        });
        config.add_bar(0, Bar::Memory32, layout::VIRTIO_BAR0_SIZE, layout::bar0(device));
        let (bar, size, address) = notify.bar1(device);
        config.add_bar(1, bar, size, address);
        let (msix, window) = add_capabilities(&mut config, shared);
        Self { shared, device, notify, config, common: Common::new(shared), msix, window, refused: 0 }
    }

    /// Returns what the transport shares with the engine.
    #[must_use]
    pub fn shared(&self) -> &'a Shared {
        self.shared
    }

    fn read_bar0(&mut self, offset: u64, size: u8) -> u64 {
        let within = offset & !PART_MASK;
        match (offset & PART_MASK) as u32 {
            COMMON_AT => self.common.read(self.shared, within, size),
            ISR_AT if within == 0 && size != 0 => u64::from(self.shared.take_isr()),
            ISR_AT => 0,
            DEVICE_AT => self.shared.read_config(within, size),
            _ if offset < u64::from(PENDING_AT) => self.shared.msix.read(within, size),
            _ => self.shared.msix.read_pba(offset.wrapping_sub(u64::from(PENDING_AT)), size),
        }
    }

    /// Writes BAR0. ISR and pending bits are read-only, and so is most of the device configuration.
    fn write_bar0(&mut self, offset: u64, size: u8, value: u64, send: &mut impl FnMut(Message)) {
        match (offset & PART_MASK) as u32 {
            COMMON_AT => self.common.write(self.shared, offset & !PART_MASK, size, value),
            TABLE_AT if offset < u64::from(PENDING_AT) => {
                self.shared.msix.write(offset & !PART_MASK, size, value);
                self.send_unmasked(send);
            }
            DEVICE_AT => self.shared.write_config(offset & !PART_MASK, size, value),
            _ => {}
        }
    }

    /// Writes a notification word. Its place names the queue. The value does not matter, because NOTIFICATION_DATA is
    /// not offered.
    fn notify(&mut self, offset: u64) {
        const STEP: u64 = NOTIFY_MULTIPLIER as u64;
        let queue = offset / STEP;
        if offset.is_multiple_of(STEP)
            && queue < u64::from(self.shared.queues())
            && self.common.status(self.shared).contains(Status::DRIVER_OK)
        {
            self.shared.kick(queue as u16);
        }
    }

    /// Whether an access touches any of the `len` bytes at `at`.
    fn touches(&self, register: usize, size: u8, at: usize, len: usize) -> bool {
        register < at.saturating_add(len) && at < register.saturating_add(usize::from(size.min(8)))
    }

    /// Returns the offset of a field of the configuration access window.
    fn in_window(&self, field: usize) -> usize {
        self.window.saturating_add(field)
    }

    /// Returns the place and the length that the configuration access window is set to. Returns `None` if the driver
    /// has not set it as the specification demands (4.1.4.9.2). The window works even while the BARs decode nothing,
    /// which is its purpose.
    fn window(&self) -> Option<(Place, u8)> {
        let bar = self.config.byte(self.in_window(WINDOW_BAR));
        let offset = self.config.read(self.in_window(WINDOW_OFFSET), 4);
        let length = self.config.read(self.in_window(WINDOW_LENGTH), 4);
        let size = match bar {
            0 => layout::VIRTIO_BAR0_SIZE,
            1 => self.notify.bar1(self.device).1,
            _ => return None,
        };
        let valid = matches!(length, 1 | 2 | 4) && offset.is_multiple_of(length) && offset < u64::from(size);
        valid.then_some((Place { bar, offset }, length as u8))
    }

    fn send_unmasked(&mut self, send: &mut impl FnMut(Message)) {
        for message in self.shared.msix.take_unmasked() {
            match message.decode() {
                Ok(interrupt) => send(interrupt.into()),
                Err(_) => self.refused = self.refused.saturating_add(1),
            }
        }
    }
}

impl Function for VirtioPci<'_> {
    fn read_config(&mut self, register: usize, size: u8) -> u64 {
        if self.touches(register, size, self.in_window(WINDOW_DATA), 4)
            && let Some((place, length)) = self.window()
        {
            let bytes = (self.read_bar(place, length) as u32).to_le_bytes();
            self.config.set(self.in_window(WINDOW_DATA), bytes.get(..usize::from(length)).unwrap_or(&bytes));
        }
        self.config.read(register, size)
    }

    fn write_config(&mut self, register: usize, size: u8, value: u64, send: &mut impl FnMut(Message)) {
        self.config.write(register, size, value);
        let message_control = self.msix.saturating_add(MESSAGE_CONTROL);
        if self.touches(register, size, message_control, 2) {
            let control = self.config.byte(message_control.saturating_add(1));
            self.shared.msix.set_function_control(control & MSIX_ENABLE != 0, control & MSIX_FUNCTION_MASK != 0);
            self.send_unmasked(send);
        }
        if self.touches(register, size, self.in_window(WINDOW_DATA), 4)
            && let Some((place, length)) = self.window()
        {
            let value = self.config.read(self.in_window(WINDOW_DATA), length);
            self.write_bar(place, length, value, send);
        }
    }

    fn decode_memory(&self, gpa: u64) -> Option<Place> {
        let decoded = |bar: u8, size: u32| {
            let offset = gpa.wrapping_sub(u64::from(self.config.bar(bar.into())));
            (offset < u64::from(size)).then_some(Place { bar, offset })
        };
        if !self.config.command().contains(Command::MEMORY) {
            return None;
        }
        let notify = match self.notify {
            NotifyBar::Io => None,
            NotifyBar::Memory => decoded(1, layout::VIRTIO_BAR1_MEMORY_SIZE),
        };
        decoded(0, layout::VIRTIO_BAR0_SIZE).or(notify)
    }

    fn decode_port(&self, port: u16) -> Option<Place> {
        let offset = u64::from(port).wrapping_sub(u64::from(self.config.bar(1)));
        let decoded = self.notify == NotifyBar::Io
            && self.config.command().contains(Command::IO)
            && offset < u64::from(layout::VIRTIO_BAR1_SIZE);
        decoded.then_some(Place { bar: 1, offset })
    }

    /// Loads from a BAR. A notification word reads as zero.
    fn read_bar(&mut self, place: Place, size: u8) -> u64 {
        if place.bar == 0 { self.read_bar0(place.offset, size) } else { 0 }
    }

    fn write_bar(&mut self, place: Place, size: u8, value: u64, send: &mut impl FnMut(Message)) {
        if place.bar == 0 {
            self.write_bar0(place.offset, size, value, send);
        } else {
            self.notify(place.offset);
        }
    }

    fn reason(&self, place: Place) -> Reason {
        match (place.bar, self.notify) {
            (0, _) => Reason::MmioPci,
            (_, NotifyBar::Io) => Reason::IoVirtioNotify,
            (_, NotifyBar::Memory) => Reason::MmioVirtioNotify,
        }
    }

    /// Resets the function. The caller calls [`Shared::restart`].
    fn reset(&mut self) {
        *self = Self::with_notify(self.shared, self.device, self.notify);
    }

    /// See [`virtio::msix::Refused`].
    fn refused(&self) -> u64 {
        self.refused
    }
}

/// Adds the function's capabilities. Returns the offsets of MSI-X and of the configuration access window. Together they
/// take 108 of the 192 bytes.
fn add_capabilities(config: &mut ConfigSpace, shared: &Shared) -> (usize, usize) {
    const LAST: u16 = VECTORS as u16 - 1;
    let mut msix = [0; 10];
    // Table and pending bits of all entries. The low bits of each offset are the BAR's number, 0.
    msix[0..2].copy_from_slice(&LAST.to_le_bytes());
    msix[2..6].copy_from_slice(&TABLE_AT.to_le_bytes());
    msix[6..10].copy_from_slice(&PENDING_AT.to_le_bytes());
    let msix = config.add_capability(CAPABILITY_MSIX, &msix, &[0, MSIX_ENABLE | MSIX_FUNCTION_MASK]);

    let device_length = u32::from(shared.device().config_len);
    for (kind, offset, length) in
        [(COMMON, COMMON_AT, common::LENGTH), (ISR, ISR_AT, 1), (DEVICE, DEVICE_AT, device_length)]
    {
        // A device without a configuration of its own has no capability for it (4.1.4.6.1). Linux refuses an empty one.
        if length == 0 {
            continue;
        }
        let capability: [u8; 16] = capability(kind, 0, offset, length);
        config.add_capability(CAPABILITY_VENDOR, &capability[2..], &[]);
    }
    let mut notify: [u8; 20] = capability(NOTIFY, 1, 0, NOTIFY_MULTIPLIER * u32::from(shared.queues()));
    notify[16..20].copy_from_slice(&NOTIFY_MULTIPLIER.to_le_bytes());
    config.add_capability(CAPABILITY_VENDOR, &notify[2..], &[]);

    let mut writable: [u8; 20] = capability(0, 0xff, u32::MAX, u32::MAX);
    writable[..WINDOW_BAR].fill(0);
    writable[WINDOW_DATA..].fill(0xff);
    let window: [u8; 20] = capability(PCI, 0, 0, 0);
    let window = config.add_capability(CAPABILITY_VENDOR, &window[2..], &writable[2..]);
    (usize::from(msix.unwrap_or(0)), usize::from(window.unwrap_or(0)))
}

/// Returns a virtio capability of `N` bytes (4.1.4). Its first two bytes, ID and pointer, are filled in later.
fn capability<const N: usize>(kind: u8, bar: u8, offset: u32, length: u32) -> [u8; N] {
    let mut c = [0; N];
    c[2] = N as u8;
    c[3] = kind;
    c[WINDOW_BAR] = bar;
    c[WINDOW_OFFSET..WINDOW_LENGTH].copy_from_slice(&offset.to_le_bytes());
    c[WINDOW_LENGTH..WINDOW_DATA].copy_from_slice(&length.to_le_bytes());
    c
}

const _: () = assert!(VECTORS as u64 * ENTRY_BYTES <= (PENDING_AT - TABLE_AT) as u64);

#[cfg(test)]
mod tests;
