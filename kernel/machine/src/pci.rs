//! Bus 0 of the guest: the host bridge at 00:00.0, and the guest's functions from 00:01.0 on. The guest reaches them by
//! ECAM, by CONFIG_ADDRESS and CONFIG_DATA, and at their BARs.
//!
//! Follows PCI Local Bus 3.0 ch. 3.2.2.3.2 (mechanism #1) and PCI Express Base 7.2.2 (ECAM). A load from a function
//! that does not exist returns all ones, and a store to it is dropped, as by a master abort.
//!
//! The bus knows only a function's trait ([`function::Function`]). It is generic over the kind of its functions and not a list of
//! trait objects: an exit calls them, and an indirect call goes where the guest has trained the processor to go
//! (SECURITY.md, "Speculation"). Functions of several kinds on one bus are variants of an `enum`.
//!
//! Callers serialise access, and try the fixed devices (IOAPIC, COM1, ACPI) first. So a BAR that the guest moves over
//! one of them, or over its memory, hides only its own function.

extern crate alloc;

pub mod config;
pub mod function;

use alloc::vec::Vec;

use config::{ConfigSpace, Identity};
use function::Function;

use crate::{
    lapic::Message,
    layout::{CONFIG_ADDRESS, CONFIG_DATA, ECAM_SIZE},
    reason::Reason,
};

/// Most functions of a guest, besides the host bridge.
pub const MAX_FUNCTIONS: usize = 8;

/// The host bridge is Cloud Hypervisor's, 8086:0d57. EDK2 recognises its machine by this device ID, and stops on an ID that
/// it does not know. Linux has neither a driver nor a quirk for this one.
const HOST_BRIDGE: Identity = Identity {
    vendor: 0x8086,
    device: 0x0d57,
    revision: 0,
    class: 0x06_0000,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The enable bit of CONFIG_ADDRESS.
const ENABLE: u32 = 1 << 31;
const ADDRESS_MASK: u32 = 0x80ff_fffc;

/// The bus and its functions. If a write unmasks an interrupt, the method calls `send` with it. The interrupt then goes
/// to [`crate::mailbox::send`].
pub struct Bus<F> {
    address: u32,
    bridge: ConfigSpace,
    functions: Vec<F>,
}

impl<F: Function> Default for Bus<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Function> Bus<F> {
    /// Makes a bus that has only the host bridge.
    #[must_use]
    pub fn new() -> Self {
        Self { address: 0, bridge: ConfigSpace::new(&HOST_BRIDGE), functions: Vec::new() }
    }

    /// Adds a function at the next free device number (1 to 31), and returns that number. `make` gets the number too.
    ///
    /// # Errors
    /// There are already [`MAX_FUNCTIONS`].
    pub fn add(&mut self, make: impl FnOnce(u8) -> F) -> Result<u8, TooManyFunctions> {
        if self.functions.len() >= MAX_FUNCTIONS {
            return Err(TooManyFunctions);
        }
        let device = (self.functions.len() as u8).saturating_add(1);
        self.functions.push(make(device));
        Ok(device)
    }

    /// Returns the number of functions besides the host bridge. Their device numbers are 1 to this number.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the reason that an access to a port counts as, or `None` if no function answers there.
    #[must_use]
    pub fn port_reason(&self, port: u16) -> Option<Reason> {
        self.functions.iter().find_map(|f| Some(f.reason(f.decode_port(port)?)))
    }

    /// Returns the reason that an access to a guest-physical address counts as, or `None` if no function answers there.
    #[must_use]
    pub fn memory_reason(&self, gpa: u64) -> Option<Reason> {
        self.functions.iter().find_map(|f| Some(f.reason(f.decode_memory(gpa)?)))
    }

    /// Returns the number of interrupt messages that the functions had to send but that no device may send.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.functions.iter().map(Function::refused).sum()
    }

    /// Resets the bus and all functions to their state after power-on.
    pub fn reset(&mut self) {
        self.address = 0;
        self.bridge = ConfigSpace::new(&HOST_BRIDGE);
        self.functions.iter_mut().for_each(Function::reset);
    }

    /// Loads `size` bytes (up to 8) at `offset` of the ECAM.
    pub fn read_ecam(&mut self, offset: u64, size: u8) -> u64 {
        if offset >= ECAM_SIZE {
            return ones(size);
        }
        self.read_config((offset >> 12) as usize, (offset & 0xfff) as usize, size)
    }

    /// Stores to the ECAM.
    pub fn write_ecam(&mut self, offset: u64, size: u8, value: u64, send: impl FnMut(Message)) {
        if offset < ECAM_SIZE {
            self.write_config((offset >> 12) as usize, (offset & 0xfff) as usize, size, value, send);
        }
    }

    /// Handles IN of 1, 2 or 4 bytes. Returns `None` if `port` is neither a configuration port nor a function's.
    pub fn read_port(&mut self, port: u16, size: u8) -> Option<u32> {
        match self.configuration_port(port, size) {
            Some(ConfigurationPort::Address) => Some(self.address),
            Some(ConfigurationPort::Data { function, register }) => {
                Some(self.read_config(function, register, size) as u32)
            }
            Some(ConfigurationPort::Nothing) => Some(ones(size) as u32),
            None => {
                self.functions.iter_mut().find_map(|f| f.decode_port(port).map(|place| f.read_bar(place, size) as u32))
            }
        }
    }

    /// Handles OUT. Returns false if `port` is neither a configuration port nor a function's.
    pub fn write_port(&mut self, port: u16, size: u8, value: u32, mut send: impl FnMut(Message)) -> bool {
        match self.configuration_port(port, size) {
            Some(ConfigurationPort::Address) => self.address = value & ADDRESS_MASK,
            Some(ConfigurationPort::Data { function, register }) => {
                self.write_config(function, register, size, u64::from(value), send);
            }
            Some(ConfigurationPort::Nothing) => {}
            None => {
                let found = self.functions.iter_mut().find_map(|f| f.decode_port(port).map(|place| (f, place)));
                let Some((function, place)) = found else { return false };
                function.write_bar(place, size, u64::from(value), &mut send);
            }
        }
        true
    }

    /// Loads `size` bytes (up to 8) from a function's memory. Returns `None` if no function answers there.
    pub fn read_memory(&mut self, gpa: u64, size: u8) -> Option<u64> {
        self.functions.iter_mut().find_map(|f| f.decode_memory(gpa).map(|place| f.read_bar(place, size)))
    }

    /// Stores to a function's memory. Returns false if no function answers there.
    pub fn write_memory(&mut self, gpa: u64, size: u8, value: u64, mut send: impl FnMut(Message)) -> bool {
        let found = self.functions.iter_mut().find_map(|f| f.decode_memory(gpa).map(|place| (f, place)));
        let Some((function, place)) = found else { return false };
        function.write_bar(place, size, value, &mut send);
        true
    }

    /// Returns the meaning of a port in mechanism #1. CONFIG_ADDRESS takes only double words. No device answers other
    /// accesses to it.
    fn configuration_port(&self, port: u16, size: u8) -> Option<ConfigurationPort> {
        if port == CONFIG_ADDRESS && size == 4 {
            return Some(ConfigurationPort::Address);
        }
        let low = port.checked_sub(CONFIG_DATA).filter(|low| *low < 4)?;
        // Bus 0 only. Bits 15 to 8 are device and function.
        if self.address & ENABLE == 0 || self.address & 0xff_0000 != 0 {
            return Some(ConfigurationPort::Nothing);
        }
        Some(ConfigurationPort::Data {
            function: (self.address >> 8 & 0xff) as usize,
            register: (self.address & 0xfc) as usize | usize::from(low),
        })
    }

    /// `function` is device * 8 + function.
    fn read_config(&mut self, function: usize, register: usize, size: u8) -> u64 {
        match (function % 8, function / 8) {
            (0, 0) => self.bridge.read(register, size),
            (0, device) => {
                self.functions.get_mut(device.wrapping_sub(1)).map_or(ones(size), |f| f.read_config(register, size))
            }
            _ => ones(size),
        }
    }

    fn write_config(&mut self, function: usize, register: usize, size: u8, value: u64, mut send: impl FnMut(Message)) {
        match (function % 8, function / 8) {
            (0, 0) => self.bridge.write(register, size, value),
            (0, device) => {
                if let Some(f) = self.functions.get_mut(device.wrapping_sub(1)) {
                    f.write_config(register, size, value, &mut send);
                }
            }
            _ => {}
        }
    }
}

/// The bus is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyFunctions;

impl core::fmt::Display for TooManyFunctions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "more than {MAX_FUNCTIONS} devices")
    }
}

enum ConfigurationPort {
    Address,
    Data { function: usize, register: usize },
    Nothing,
}

/// Returns what `size` bytes read where nothing answers: all ones.
const fn ones(size: u8) -> u64 {
    crate::decode::mask(size)
}

#[cfg(test)]
mod tests;
