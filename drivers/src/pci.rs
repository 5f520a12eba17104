//! PCI configuration space of the machine itself. It is reached by ECAM if ACPI names one, otherwise by ports CF8/CFC
//! (PCI Local Bus 3.0, 3.2.2.3; PCI Express 6.0, 7.2.2, 7.6 and 7.8.8).

#![allow(unsafe_code, reason = "configuration space is reached by ports or by uncached memory")]

mod bar;

use x86_64::instructions::port::Port;

pub use bar::{BadBar, MemoryBar};
use bar::{is_wide, joined};

/// The address of a function: bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

/// A way to reach configuration space.
#[derive(Clone, Copy, Debug)]
pub enum ConfigSpace {
    /// Ports 0xCF8 and 0xCFC: segment 0, the first 256 bytes of each function.
    Ports,
    /// ECAM: memory for the buses `first` to `last` of a segment.
    Ecam {
        /// Address where bus 0's first function is, or would be.
        base: u64,
        /// First bus.
        first: u8,
        /// Last bus.
        last: u8,
    },
}

/// Where a register is.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// At this address.
    Memory(*mut u32),
    /// Behind this value of port 0xCF8.
    Selector(u32),
}

/// A function that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its address. With ARI the upper five bits of its number are in `device`.
    pub at: Address,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// The bus behind it, if it is a bridge to PCI. 0: the firmware has given it none, and nothing behind it can be reached.
    pub secondary: Option<u8>,
}

/// Bits of the command register (PCI 3.0, 6.2.2).
pub mod command {
    /// The function answers accesses to its ports.
    pub const PORTS: u16 = 1 << 0;
    /// The function answers accesses to its memory.
    pub const MEMORY: u16 = 1 << 1;
    /// The function may read and write memory by itself (DMA).
    pub const BUS_MASTER: u16 = 1 << 2;
    /// The function does not assert its interrupt pin.
    pub const INTERRUPT_DISABLE: u16 = 1 << 10;
}

impl ConfigSpace {
    /// Reads the 32-bit register at `offset` (a multiple of 4, below 4096). What cannot be reached reads as all ones, as an absent
    /// function does: a bus outside of `first` to `last`, and by ports what is behind the first 256 bytes.
    ///
    /// # Safety
    /// Only one CPU may use the ports at a time; an ECAM region must be mapped, uncached, at its physical address.
    #[must_use]
    pub unsafe fn read(&self, at: Address, offset: u16) -> u32 {
        match self.locate(at, offset) {
            // SAFETY: the caller's promise; reading configuration space has no side effect in the standard header.
            Some(Place::Memory(p)) => unsafe { p.read_volatile() },
            // SAFETY: as above.
            Some(Place::Selector(selector)) => unsafe {
                Port::new(0xcf8).write(selector);
                Port::new(0xcfc).read()
            },
            None => u32::MAX,
        }
    }

    /// Writes the 32-bit register at `offset` (a multiple of 4, below 4096). Does nothing to what cannot be reached.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`]. The caller must want the effect that the write has on the device.
    pub unsafe fn write(&self, at: Address, offset: u16, value: u32) {
        match self.locate(at, offset) {
            // SAFETY: the caller's promise.
            Some(Place::Memory(p)) => unsafe { p.write_volatile(value) },
            // SAFETY: as above.
            Some(Place::Selector(selector)) => unsafe {
                Port::new(0xcf8).write(selector);
                Port::new(0xcfc).write(value);
            },
            None => {}
        }
    }

    fn locate(&self, at: Address, offset: u16) -> Option<Place> {
        let function = u32::from(at.device & 31) << 3 | u32::from(at.function & 7);
        match *self {
            Self::Ecam { base, first, last } => {
                if !(first..=last).contains(&at.bus) || offset >= BYTES {
                    return None;
                }
                let within = u64::from(at.bus) << 20 | u64::from(function) << 12 | u64::from(offset & !3);
                let p = base.checked_add(within)?;
                Some(Place::Memory(core::ptr::with_exposed_provenance_mut(p as usize)))
            }
            Self::Ports if offset >= PORT_BYTES => None,
            Self::Ports => {
                Some(Place::Selector(1 << 31 | u32::from(at.bus) << 16 | function << 8 | u32::from(offset & !3)))
            }
        }
    }

    /// Calls `found` for each function of a bus that answers.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    pub unsafe fn scan_bus(&self, bus: u8, mut found: impl FnMut(Seen)) {
        // A bit for each number that `found` has got: device in the upper five bits, function in the lower three.
        let mut seen = [0_u8; 32];
        for (device, seen) in (0..).zip(&mut seen) {
            for function in 0..8 {
                let at = Address { bus, device, function };
                // SAFETY: the caller's promise.
                let (function_0, header) = unsafe { (self.see(at), self.read(at, HEADER)) };
                if let Some(function) = function_0 {
                    *seen |= 1 << at.function;
                    found(function);
                }
                if function == 0 && (function_0.is_none() || header & SEVERAL_FUNCTIONS == 0) {
                    break;
                }
            }
        }
        // With ARI (PCI Express 6.13) a device 0 has up to 256 functions. Each names the next one. Numbers rise, so the list ends.
        let mut number = 0_u8;
        loop {
            let at = Address { bus, device: number >> 3, function: number & 7 };
            let known = seen.get(usize::from(at.device)).is_some_and(|seen| seen & 1 << at.function != 0);
            // SAFETY: the caller's promise.
            if !known && let Some(function) = unsafe { self.see(at) } {
                found(function);
            }
            // SAFETY: as above.
            match unsafe { self.next_ari_function(at) } {
                Some(next) if next > number => number = next,
                _ => break,
            }
        }
    }

    /// Returns what answers at an address.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    unsafe fn see(&self, at: Address) -> Option<Seen> {
        // SAFETY: the caller's promise.
        let (id, class, header) = unsafe { (self.read(at, 0), self.read(at, CLASS) >> 8, self.read(at, HEADER) >> 16) };
        if id & 0xffff == 0xffff {
            return None;
        }
        // SAFETY: as above.
        let buses = (header & 0x7f == TO_PCI).then(|| unsafe { self.read(at, BUSES) });
        let secondary = buses.map(|buses| (buses >> 8) as u8);
        Some(Seen { at, vendor: id as u16, device: (id >> 16) as u16, class, secondary })
    }

    /// Returns the number of the function after this one by its ARI capability (PCI Express 7.8.8): 0 at the end. `None`: it has no such
    /// capability.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    unsafe fn next_ari_function(&self, at: Address) -> Option<u8> {
        // SAFETY: the caller's promise.
        unsafe {
            let place = self.extended_capability(at, ARI)?;
            Some((self.read(at, place.saturating_add(4)) >> 8) as u8)
        }
    }

    /// Returns the offset of a function's first extended capability with this ID (PCI Express 7.6.3). `None`: it has none, or the list cannot
    /// be reached. A list that leads into itself ends.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    #[must_use]
    pub unsafe fn extended_capability(&self, at: Address, id: u16) -> Option<u16> {
        let mut place = PORT_BYTES;
        for _ in 0..MAX_EXTENDED {
            // SAFETY: the caller's promise.
            let head = unsafe { self.read(at, place) };
            if matches!(head, 0 | u32::MAX) {
                return None;
            }
            if head as u16 == id {
                return Some(place);
            }
            place = (head >> 20) as u16 & !3;
            if place < PORT_BYTES {
                return None;
            }
        }
        None
    }

    /// Clears and sets bits of a function's command register.
    ///
    /// # Safety
    /// As for [`ConfigSpace::write`].
    pub unsafe fn update_command(&self, at: Address, clear: u16, set: u16) {
        // SAFETY: the caller's promise. The upper half is the status register. Its bits are cleared by writing 1, so
        // zeroes do not change them.
        unsafe {
            let was = self.read(at, COMMAND) as u16;
            self.write(at, COMMAND, u32::from(was & !clear | set));
        }
    }

    /// Takes from a function all by which it writes to memory by itself: bus mastering, MSI and MSI-X (PCI 3.0, 6.2.2, 6.8.1,
    /// 6.8.2). It keeps its interrupt pin low. Returns what it had.
    ///
    /// # Safety
    /// As for [`ConfigSpace::write`]; nobody drives the function.
    pub unsafe fn silence(&self, at: Address) -> Active {
        // SAFETY: the caller's promise.
        let (command, messages) = unsafe { self.stop(at, command::BUS_MASTER) };
        Active { bus_master: command & command::BUS_MASTER != 0, messages }
    }

    /// Takes MSI and MSI-X from a function, and keeps its interrupt pin low. Returns whether it could send messages.
    ///
    /// # Safety
    /// As for [`ConfigSpace::silence`].
    pub unsafe fn stop_interrupts(&self, at: Address) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.stop(at, 0) }.1
    }

    /// Does [`ConfigSpace::stop_interrupts`], and clears these bits of the command register. Returns what that was, and whether the
    /// function could send messages.
    ///
    /// # Safety
    /// As for [`ConfigSpace::silence`].
    unsafe fn stop(&self, at: Address, clear: u16) -> (u16, bool) {
        // SAFETY: the caller's promise. Writing back what was read changes no other bit of a capability: their status bits are
        // not in the first register. In the command register see `update_command`.
        unsafe {
            let command = self.read(at, COMMAND);
            self.update_command(at, clear, command::INTERRUPT_DISABLE);
            let mut messages = false;
            self.find_capability(at, command, |place, register| {
                let enable = match register as u8 {
                    MSI => MSI_ENABLE,
                    MSIX => MSIX_ENABLE,
                    _ => 0,
                };
                if register & enable != 0 {
                    messages = true;
                    self.write(at, place, register & !enable);
                }
                false
            });
            (command as u16, messages)
        }
    }

    /// Goes through a function's list of capabilities (PCI 3.0, 6.7), and returns the offset of the first one that is wanted. `is_wanted`
    /// gets the offset of each and its first register, with the ID in bits 7:0. A list that leads back into itself ends. `command`: the
    /// command and status registers, which say whether there is a list.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    unsafe fn find_capability(
        &self,
        at: Address,
        command: u32,
        mut is_wanted: impl FnMut(u16, u32) -> bool,
    ) -> Option<u16> {
        if command >> 16 & HAS_CAPABILITIES == 0 {
            return None;
        }
        // SAFETY: the caller's promise. All registers are of the standard header, or below 256.
        unsafe {
            let mut next = self.read(at, CAPABILITIES) as u8;
            for _ in 0..MAX_CAPABILITIES {
                let place = next & !3;
                if place < FIRST_CAPABILITY {
                    break;
                }
                let register = self.read(at, place.into());
                if is_wanted(place.into(), register) {
                    return Some(place.into());
                }
                next = (register >> 8) as u8;
            }
            None
        }
    }

    /// Brings a function to full power, state D0. In a deeper state its memory does not answer. Returns the state that it was in, 1 to 3:
    /// D1, D2, D3hot. `None`: it was at full power, or has no capability for it. A function that loses its registers on the way gets its base
    /// addresses again (PCI Power Management 1.2, 3.2.4, 5.4.1, 5.6.1).
    ///
    /// `wait`: waits for so many microseconds.
    ///
    /// # Safety
    /// As for [`ConfigSpace::write`]; nobody drives the function.
    pub unsafe fn wake(&self, at: Address, wait: impl FnOnce(u64)) -> Option<u8> {
        // SAFETY: the caller's promise. PME_Status is cleared by writing 1, so it stays; everything else in the upper half can only be read.
        unsafe {
            let has_id = |_, register| register as u8 == POWER_MANAGEMENT;
            let place = self.find_capability(at, self.read(at, COMMAND), has_id)?.checked_add(4)?;
            let status = self.read(at, place);
            let state = status & POWER_STATE;
            if state == 0 {
                return None;
            }
            let bars: [u32; 6] = core::array::from_fn(|index| self.read(at, bar_offset(index as u8)));
            self.write(at, place, status & !(POWER_STATE | PME_STATUS));
            wait(if state == POWER_STATE { AFTER_D3 } else { AFTER_D2 });
            if status & NO_SOFT_RESET == 0 {
                for (index, bar) in (0..).zip(bars) {
                    self.write(at, bar_offset(index), bar);
                }
            }
            Some(state as u8)
        }
    }

    /// Returns address and size of the memory that a function's base address register names. `index`: 0 to 5. During
    /// the call the function does not answer accesses to its ports and memory.
    ///
    /// # Errors
    /// The function has no such register, or it cannot be used.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`]; nobody uses the function.
    pub unsafe fn memory_bar(&self, at: Address, index: u8) -> Result<MemoryBar, BadBar> {
        let offset = bar_offset(index);
        // A 64-bit base address takes two registers. After the last register there is no second one.
        let count = if offset == LAST_BAR { 1 } else { 2 };
        // SAFETY: the caller's promise; each register gets its old value back before the function may answer again.
        unsafe {
            let was_command = self.read(at, COMMAND) as u16;
            self.update_command(at, command::PORTS | command::MEMORY, 0);
            let (mut was, mut sized) = ([0; 2], [0; 2]);
            for (i, (was, sized)) in was.iter_mut().zip(&mut sized).enumerate().take(count) {
                let offset = offset.saturating_add((i as u16) << 2);
                *was = self.read(at, offset);
                self.write(at, offset, u32::MAX);
                *sized = self.read(at, offset);
                self.write(at, offset, *was);
            }
            self.update_command(at, 0, was_command & (command::PORTS | command::MEMORY));
            MemoryBar::decode(was, sized)
        }
    }

    /// Returns the address that a memory base address register names.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    #[must_use]
    pub unsafe fn bar_address(&self, at: Address, index: u8) -> u64 {
        let offset = bar_offset(index);
        // SAFETY: the caller's promise.
        unsafe {
            let low = self.read(at, offset);
            let high = if is_wide(low) && offset != LAST_BAR { self.read(at, offset.saturating_add(4)) } else { 0 };
            joined([low, high])
        }
    }

    /// Returns the address of a memory base address register by which the function answers. `None`: it names none, or the function
    /// does not answer accesses to its memory.
    ///
    /// # Safety
    /// As for [`ConfigSpace::read`].
    #[must_use]
    pub unsafe fn memory_address(&self, at: Address, index: u8) -> Option<u64> {
        // SAFETY: the caller's promise.
        let (command, register, base) =
            unsafe { (self.read(at, COMMAND), self.read(at, bar_offset(index)), self.bar_address(at, index)) };
        (command as u16 & command::MEMORY != 0 && register & IS_PORTS == 0 && base != 0).then_some(base)
    }

    /// Writes the address of a memory base address register.
    ///
    /// # Safety
    /// As for [`ConfigSpace::write`]. The function does not answer accesses to its memory now, and the memory is its own.
    pub unsafe fn set_bar_address(&self, at: Address, index: u8, base: u64) {
        let offset = bar_offset(index);
        // SAFETY: the caller's promise.
        unsafe {
            let wide = is_wide(self.read(at, offset));
            self.write(at, offset, base as u32);
            if wide && offset != LAST_BAR {
                self.write(at, offset.saturating_add(4), (base >> 32) as u32);
            }
        }
    }
}

/// The offset of a base address register. `index`: 0 to 5.
fn bar_offset(index: u8) -> u16 {
    u16::from(index.min(5) << 2).saturating_add(BAR0)
}

/// What a function could do by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Active {
    /// Read and write memory.
    pub bus_master: bool,
    /// Send interrupts as messages, by MSI or MSI-X.
    pub messages: bool,
}

impl Active {
    /// Whether it could do something.
    #[must_use]
    pub fn any(self) -> bool {
        self.bus_master || self.messages
    }
}

/// Bytes of a function's configuration space, and those that the ports reach. Extended capabilities begin behind these.
const BYTES: u16 = 4096;
const PORT_BYTES: u16 = 256;
const COMMAND: u16 = 4;
/// Class code, in the upper 24 bits.
const CLASS: u16 = 8;
const HEADER: u16 = 12;
/// In the register [`HEADER`]: the device has several functions.
/// A base address register: it names I/O ports.
const IS_PORTS: u32 = 1;
const SEVERAL_FUNCTIONS: u32 = 1 << 23;
/// Header type of a bridge to PCI, and its register with the numbers of its buses.
const TO_PCI: u32 = 1;
const BUSES: u16 = 0x18;
/// Extended capability ID of ARI, and as many capabilities as fit into the space for them.
const ARI: u16 = 0xe;
const MAX_EXTENDED: u16 = (BYTES - PORT_BYTES) / 4;
/// In the status register: there is a list of capabilities.
const HAS_CAPABILITIES: u32 = 1 << 4;
const CAPABILITIES: u16 = 0x34;
const FIRST_CAPABILITY: u8 = 0x40;
/// As many as fit into 256 bytes.
const MAX_CAPABILITIES: u8 = 48;
/// Capability ID of MSI, and its enable bit in the capability's first register.
const MSI: u8 = 5;
const MSI_ENABLE: u32 = 1 << 16;
/// Capability ID of MSI-X, and its enable bit.
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u32 = 1 << 31;
/// Capability ID of power management. In its register PMCSR: the state, that the way from D3hot to D0 is no reset, that an event waits.
const POWER_MANAGEMENT: u8 = 1;
const POWER_STATE: u32 = 3;
const NO_SOFT_RESET: u32 = 1 << 3;
const PME_STATUS: u32 = 1 << 15;
/// Microseconds from D3hot, and from D1 or D2, to D0.
const AFTER_D3: u64 = 10_000;
const AFTER_D2: u64 = 200;
const BAR0: u16 = 0x10;
const LAST_BAR: u16 = 0x24;

#[cfg(test)]
mod tests;
