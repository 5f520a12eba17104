//! PCI configuration space of the machine itself. It is reached by ECAM if ACPI names one, otherwise by ports CF8/CFC
//! (PCI Local Bus 3.0, 3.2.2.3; PCI Express 6.0, 7.2.2, 7.6 and 7.8.8).

#![allow(unsafe_code, reason = "configuration space is reached by ports or by uncached memory")]

use x86_64::instructions::port::Port;

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

/// Whether a memory base address register takes two registers (PCI 3.0, 6.2.5.1).
const fn is_wide(register: u32) -> bool {
    register & 7 == 4
}

/// The address in the two registers of a memory base address, without the low bits that say its kind.
fn joined([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low & !0xf)
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

/// The memory that a base address register names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBar {
    /// Physical address.
    pub base: u64,
    /// Size in bytes, a power of two.
    pub size: u64,
}

/// Why a base address register cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadBar {
    /// The function has no such register.
    Absent,
    /// The register names ports.
    Ports,
    /// The type is reserved, or the size is no power of two. The values: as first read, and as read after all ones were
    /// written.
    Nonsense(u32, u32),
    /// The firmware assigned no address, or one that is not a multiple of the size. The values: address and size.
    Unassigned(u64, u64),
}

impl core::fmt::Display for BadBar {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Absent => f.write_str("it has none"),
            Self::Ports => f.write_str("it names ports and not memory"),
            Self::Nonsense(was, sized) => {
                write!(f, "it reads {was:#x}, and {sized:#x} when its size is asked for, which means nothing")
            }
            Self::Unassigned(base, size) => {
                write!(
                    f,
                    "the firmware gave its {size:#x} bytes no usable address, but {base:#x}; its setup may say how much memory \
                     devices get (\"above 4G decoding\", \"MMIO\")"
                )
            }
        }
    }
}

impl MemoryBar {
    /// Decodes a register and the next one (6.2.5.1). `was`: their values. `sized`: their values after all ones were
    /// written.
    ///
    /// # Errors
    /// They name no usable memory.
    pub fn decode(was: [u32; 2], sized: [u32; 2]) -> Result<Self, BadBar> {
        if sized == [0; 2] || sized[0] == u32::MAX {
            return Err(BadBar::Absent);
        }
        if was[0] & 1 != 0 {
            return Err(BadBar::Ports);
        }
        let (base, mask) = match was[0] >> 1 & 3 {
            0 => (joined([was[0], 0]), joined([sized[0], u32::MAX])),
            2 => (joined(was), joined(sized)),
            _ => return Err(BadBar::Nonsense(was[0], sized[0])),
        };
        let size = mask.wrapping_neg();
        if !size.is_power_of_two() {
            return Err(BadBar::Nonsense(was[0], sized[0]));
        }
        if base == 0 || !base.is_multiple_of(size) {
            return Err(BadBar::Unassigned(base, size));
        }
        Ok(Self { base, size })
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "an ECAM window in the test's own memory")]

    use super::{Active, Address, BadBar, ConfigSpace, MemoryBar, Place, Seen};

    /// The registers of a function, and what is left of them when it was silenced.
    fn silenced(registers: &[(usize, u32)]) -> (Active, Vec<u32>) {
        let mut window = vec![0_u32; 1 << 10];
        for &(offset, value) in registers {
            window[offset / 4] = value;
        }
        let base = window.as_mut_ptr().expose_provenance() as u64;
        let space = ConfigSpace::Ecam { base, first: 0, last: 0 };
        // SAFETY: the first function of the first bus is all of `window`, which nobody else uses.
        let active = unsafe { space.silence(Address { bus: 0, device: 0, function: 0 }) };
        (active, window)
    }

    #[test]
    fn a_silenced_function_neither_masters_the_bus_nor_sends_messages() {
        // Commands: ports, memory, bus master; status: capabilities. MSI at 0x50, another one at 0x60, MSI-X at 0x70.
        let all = [(4, 0x10_0007), (0x34, 0x50), (0x50, 0x0081_6005), (0x60, 0xffff_7009), (0x70, 0xc007_0011)];
        let (active, left) = silenced(&all);
        assert_eq!(active, Active { bus_master: true, messages: true });
        assert_eq!(left[1] & 0xffff, 0x403, "ports and memory stay, the interrupt pin is disabled");
        assert_eq!([left[0x50 / 4], left[0x60 / 4], left[0x70 / 4]], [0x0080_6005, 0xffff_7009, 0x4007_0011]);
    }

    #[test]
    fn a_bridge_without_messages_still_masters_the_bus() {
        let mut bus = Bus::new();
        bus.add(0, &[(4, 0x10_0007), (0x34, 0x50), (0x50, 0x0081_0005)]);
        let base = bus.0.as_mut_ptr().expose_provenance() as u64;
        let space = ConfigSpace::Ecam { base, first: 0, last: 0 };
        let at = Address { bus: 0, device: 0, function: 0 };
        // SAFETY: the function is the first 1,024 words of the vector, which nobody else uses.
        assert!(unsafe { space.stop_interrupts(at) });
        assert_eq!([bus.0[1] & 0xffff, bus.0[0x50 / 4]], [0x407, 0x0080_0005]);
    }

    #[test]
    fn a_silent_function_stays_as_it_is_but_for_its_pin() {
        let (active, left) = silenced(&[(4, 0x10_0003), (0x34, 0x50), (0x50, 0x0080_0005)]);
        assert!(!active.any());
        assert_eq!((left[1] & 0xffff, left[0x50 / 4]), (0x403, 0x0080_0005));
        // Without the bit for it there is no list.
        let (active, left) = silenced(&[(4, 0x0003), (0x34, 0x50), (0x50, 0x0081_0005)]);
        assert_eq!((active.any(), left[0x50 / 4]), (false, 0x0081_0005));
    }

    #[test]
    fn a_damaged_list_of_capabilities_ends() {
        // It leads to itself, into the header, and to a register of all ones.
        for next in [0x50, 0x10, 0xff] {
            let (active, _) =
                silenced(&[(4, 0x10_0000), (0x34, 0x50), (0x50, 0x0001_0005 | next << 8), (0xfc, u32::MAX)]);
            assert!(active.messages);
        }
    }

    /// Wakes the first function of a bus with these registers. Returns its state before, the wait, and the registers.
    fn woken(registers: &[(usize, u32)], resets: bool) -> (Option<u8>, u64, Vec<u32>) {
        let mut bus = Bus::new();
        bus.add(0, registers);
        let base = bus.0.as_mut_ptr();
        let space = ConfigSpace::Ecam { base: base.expose_provenance() as u64, first: 0, last: 0 };
        let mut waited = 0;
        let wait = |micros| {
            waited = micros;
            if resets {
                // SAFETY: these are the six base addresses in the vector, which only this thread uses.
                (4..10).for_each(|register| unsafe { base.add(register).write_volatile(0) });
            }
        };
        // SAFETY: the function is the first 1,024 words of the vector.
        let state = unsafe { space.wake(Address { bus: 0, device: 0, function: 0 }, wait) };
        (state, waited, bus.0[..64].to_vec())
    }

    #[test]
    fn a_function_that_sleeps_is_woken_and_keeps_its_base_addresses() {
        // PMCSR at 0x44: D3hot, PME_En and PME_Status.
        let head = [(4, 0x10_0000), (0x10, 0xfe00_000c), (0x14, 0x12), (0x34, 0x40), (0x40, 0x0001)];
        for (pmcsr, state, waits) in [(0x8103, Some(3), 10_000), (0x8102, Some(2), 200), (0x8101, Some(1), 200)] {
            let all = [&head[..], &[(0x44, pmcsr)]].concat();
            let (was, waited, left) = woken(&all, true);
            assert_eq!((was, waited, left[0x44 / 4]), (state, waits, 0x0100), "PME_Status is not cleared by this");
            assert_eq!([left[4], left[5]], [0xfe00_000c, 0x12]);
        }
        // With No_Soft_Reset nothing is lost, and nothing is written.
        let (was, _, left) = woken(&[&head[..], &[(0x44, 0x000b)]].concat(), true);
        assert_eq!((was, left[0x44 / 4], left[4]), (Some(3), 8, 0));
    }

    #[test]
    fn a_function_at_full_power_or_without_a_capability_for_it_is_left_alone() {
        for registers in [
            &[(4, 0x10_0000), (0x34, 0x40), (0x40, 0x0001), (0x44, 0x8100)][..],
            &[(4, 0x10_0000), (0x34, 0x40), (0x40, 0x4005), (0x44, 3)],
            &[(4, 0), (0x34, 0x40), (0x40, 0x0001), (0x44, 3)],
        ] {
            let (was, waited, left) = woken(registers, true);
            assert_eq!((was, waited), (None, 0));
            assert_eq!(left[0x44 / 4], registers.iter().find(|(offset, _)| *offset == 0x44).unwrap().1);
        }
    }

    #[test]
    fn registers_are_where_the_specifications_put_them() {
        let at = Address { bus: 2, device: 31, function: 7 };
        assert_eq!(ConfigSpace::Ports.locate(at, 0x3f), Some(Place::Selector(0x8002_ff3c)));
        assert_eq!(ConfigSpace::Ports.locate(at, 0x100), None);
        // The base is bus 0's, whichever the first bus is: a server with two nodes has 40 to 7f of base f0000000 at f4000000.
        let address = |ecam: ConfigSpace, bus, offset| match ecam.locate(Address { bus, ..at }, offset) {
            Some(Place::Memory(p)) => Some(p as usize),
            _ => None,
        };
        let ecam = ConfigSpace::Ecam { base: 0xf000_0000, first: 0x40, last: 0x7f };
        assert_eq!(address(ecam, 0x40, 0x10), Some(0xf40f_f010));
        assert_eq!(address(ecam, 0x7f, 0xffc), Some(0xf7ff_fffc));
        for (bus, offset) in [(0x3f, 0), (0x80, 0), (0x40, 0x1000)] {
            assert_eq!(address(ecam, bus, offset), None);
        }
    }

    /// A bus of functions in memory. Registers of absent functions read as all ones.
    struct Bus(Vec<u32>);

    impl Bus {
        fn new() -> Self {
            Self(vec![u32::MAX; 1 << 18])
        }

        /// Adds a function by its number, with these registers. All others are 0.
        fn add(&mut self, number: usize, registers: &[(usize, u32)]) {
            let own = &mut self.0[number << 10..][..1 << 10];
            own.fill(0);
            own[0] = 0x1521_8086;
            registers.iter().for_each(|(offset, value)| own[offset / 4] = *value);
        }

        fn scan(&mut self) -> Vec<Seen> {
            let base = self.0.as_mut_ptr().expose_provenance() as u64;
            let (mut found, space) = (Vec::new(), ConfigSpace::Ecam { base, first: 0, last: 0 });
            // SAFETY: bus 0 is all of the vector, which nobody else uses.
            unsafe { space.scan_bus(0, |seen| found.push(seen)) };
            found
        }

        fn numbers(&mut self) -> Vec<u8> {
            self.scan().iter().map(|seen| seen.at.device << 3 | seen.at.function).collect()
        }
    }

    const SEVERAL: (usize, u32) = (0xc, 1 << 23);

    #[test]
    fn each_function_that_answers_is_found_once() {
        let mut bus = Bus::new();
        bus.add(0, &[]);
        // Not looked for, because function 0 says that it is alone.
        bus.add(1, &[]);
        for number in [8, 10, 15, 0xf8] {
            bus.add(number, &[SEVERAL]);
        }
        // Without function 0 there is no device.
        bus.add(0x12, &[SEVERAL]);
        assert_eq!(bus.numbers(), [0, 8, 10, 15, 0xf8]);
    }

    #[test]
    fn a_bridge_says_which_bus_is_behind_it() {
        let mut bus = Bus::new();
        bus.add(0, &[(8, 0x0604_0000), (0xc, 1 << 16), (0x18, 0x0007_0500)]);
        bus.add(8, &[(8, 0x0604_0000), (0xc, 1 << 16)]);
        bus.add(16, &[(8, 0x0200_0001), (0x18, 0x0007_0500)]);
        let found: Vec<_> = bus.scan().iter().map(|seen| (seen.class, seen.secondary)).collect();
        assert_eq!(found, [(0x06_0400, Some(5)), (0x06_0400, Some(0)), (0x02_0000, None)]);
    }

    /// An ARI capability behind another one, whose function names this one as the next.
    fn ari(next: u32) -> [(usize, u32); 4] {
        [SEVERAL, (0x100, 0x1401_0001), (0x140, 0x0001_000e), (0x144, next << 8)]
    }

    #[test]
    fn functions_that_only_ari_names_are_found() {
        let mut bus = Bus::new();
        bus.add(0, &ari(1));
        bus.add(1, &ari(9));
        // Function 8 is absent, so device 1 is none for who does not know ARI.
        bus.add(9, &ari(0xff));
        bus.add(0xff, &ari(0));
        assert_eq!(bus.numbers(), [0, 1, 9, 0xff]);
    }

    #[test]
    fn lists_that_lead_back_end() {
        // The next function is the same one, one before, or one that is absent.
        for next in [0, 9, 0x20] {
            let mut bus = Bus::new();
            bus.add(0, &ari(9));
            bus.add(9, &ari(next));
            assert_eq!(bus.numbers(), [0, 9], "{next}");
        }
        let mut bus = Bus::new();
        bus.add(0, &ari(9));
        bus.add(4, &ari(9));
        bus.add(9, &ari(4));
        assert_eq!(bus.numbers(), [0, 4, 9], "two that name each other");
        // Extended capabilities that lead to themselves, into the header, or to nothing.
        for next in [0x100, 0x20, 0x200, 0xffc] {
            let mut bus = Bus::new();
            bus.add(0, &[(0x100, next << 20 | 0x0001_0001)]);
            assert_eq!(bus.numbers(), [0], "{next:#x}");
        }
    }

    #[test]
    fn a_bar_is_believed_only_if_it_makes_sense() {
        let good = |base, size| Ok(MemoryBar { base, size });
        // 64 bits, prefetchable, above 4 GiB; 32 bits; the largest of 32 bits.
        assert_eq!(MemoryBar::decode([0xf004_000c, 0x38], [0xfffe_000c, u32::MAX]), good(0x38_f004_0000, 0x2_0000));
        assert_eq!(MemoryBar::decode([0xfe00_0000, 7], [0xfff8_0000, 0]), good(0xfe00_0000, 0x8_0000));
        assert_eq!(MemoryBar::decode([0x8000_0000, 0], [0x8000_0000, 0]), good(0x8000_0000, 0x8000_0000));
        let bad = [
            ([0, 0], [0, 0], BadBar::Absent),
            ([u32::MAX, u32::MAX], [u32::MAX, u32::MAX], BadBar::Absent),
            ([0xc001, 0], [0xffe1, 0], BadBar::Ports),
            ([0xfe00_0002, 0], [0xfffe_0002, 0], BadBar::Nonsense(0xfe00_0002, 0xfffe_0002)),
            ([0xfe00_0000, 0], [0xfefe_0000, 0], BadBar::Nonsense(0xfe00_0000, 0xfefe_0000)),
            ([4, 0], [0xfffe_0004, u32::MAX], BadBar::Unassigned(0, 0x2_0000)),
            ([0xfe01_0004, 0], [0xfffe_0004, u32::MAX], BadBar::Unassigned(0xfe01_0000, 0x2_0000)),
            ([4, 0], [4, 0], BadBar::Nonsense(4, 4)),
        ];
        for (was, sized, why) in bad {
            assert_eq!(MemoryBar::decode(was, sized), Err(why), "{was:x?} {sized:x?}");
        }
    }
}
