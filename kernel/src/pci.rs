//! The machine's PCI functions. Finds them, and controls which may master the bus.

#![allow(unsafe_code, reason = "configuration space, and who may write memory")]

use crate::{arch::time, mem, registers::Pages, report, usb};
use alloc::{format, string::String, vec::Vec};
use boot::acpi::EcamWindow;
use core::sync::atomic::{AtomicBool, Ordering};
use drivers::pci::{Address, BadBar, ConfigSpace, MemoryBar, Seen, command};
use drivers::tco;
use drivers::usb::TakenOver;
use findings::machine::Elsewhere;
use spin::{Mutex, Once};

/// A PCI function that is not a bridge.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The way to its configuration space.
    space: ConfigSpace,
    /// Its segment.
    segment: u16,
    /// Its address in the segment.
    pub at: Address,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Class code, 24 bits.
    class: u32,
}

/// Class of bridges, in the upper 8 bits.
const BRIDGE: u32 = 6;

/// The functions of segment 0, and those of other segments, which nobody drives.
static FUNCTIONS: Once<[Vec<Function>; 2]> = Once::new();
/// Guards configuration space. Its holder may use it.
static CONFIG: Mutex<()> = Mutex::new(());
/// Whether bus mastering is closed: no function gets the right any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// What [`scan`] has found.
pub struct Scanned {
    /// The number of functions in segment 0, without bridges.
    pub functions: usize,
    /// Those of other segments.
    pub elsewhere: &'static [Function],
    /// Those that were active.
    pub active: Vec<Function>,
    /// Bridges to PCI that the firmware has given no bus.
    pub without_bus: Vec<Address>,
    /// Bridges to PCI that could send messages.
    pub bridges: Vec<Address>,
    /// USB controllers, and what became of them. An error is the address of registers that cannot be mapped.
    pub usb: Vec<(Address, Result<TakenOver, u64>)>,
}

/// Finds all PCI functions: those on the buses of all `windows`, and by ports those on the other buses of segment 0. Takes USB controllers over
/// from the firmware, which stops them in order. Then takes bus mastering, MSI and MSI-X from all but bridges: what the firmware has started
/// could still write to memory that is handed out later. Bridges to PCI lose the last two only: others master the bus through them. A driver of ours gives its function bus mastering again.
pub fn scan(windows: &[EcamWindow]) -> Scanned {
    let (mut active, mut without_bus, mut taken, mut bridges) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let [here, elsewhere] = FUNCTIONS.call_once(|| {
        let _guard = CONFIG.lock();
        let [mut here, mut elsewhere] = [Vec::new(), Vec::new()];
        let mut look = |space: ConfigSpace, segment, bus, list: &mut Vec<Function>| {
            // SAFETY: only the boot core runs, and the windows are mapped.
            unsafe {
                space.scan_bus(bus, |Seen { at, vendor, device, class, secondary }| {
                    if secondary == Some(0) {
                        without_bus.push(at);
                    }
                    if secondary.is_some() && space.stop_interrupts(at) {
                        bridges.push(at);
                    }
                    if class >> 16 != BRIDGE {
                        list.push(Function { space, segment, at, vendor, device, class });
                    }
                });
            }
        };
        for bus in 0..=u8::MAX {
            let window =
                windows.iter().find(|window| window.segment == 0 && (window.first..=window.last).contains(&bus));
            look(window.map_or(ConfigSpace::Ports, space), 0, bus, &mut here);
        }
        for window in windows.iter().filter(|window| window.segment != 0) {
            (window.first..=window.last).for_each(|bus| look(space(window), window.segment, bus, &mut elsewhere));
        }
        let all = || here.iter().chain(&elsewhere);
        let mut pages = Pages::default();
        // SAFETY: as above, and nobody drives a function yet.
        let mut take = |f: &Function| Some((f.at, unsafe { usb::take(f.space, f.at, f.class, &mut pages) }?));
        taken.extend(all().filter_map(&mut take));
        // SAFETY: as above.
        active.extend(all().filter(|function| unsafe { function.space.silence(function.at).any() }));
        [here, elsewhere]
    });
    Scanned { functions: here.len(), elsewhere, active, without_bus, bridges, usb: taken }
}

fn space(&EcamWindow { base, first, last, .. }: &EcamWindow) -> ConfigSpace {
    ConfigSpace::Ecam { base, first, last }
}

/// Returns the functions of the device 00:1f that answer, bridges too. Intel's chipsets have their LPC bridge and their
/// SMBus controller there. Call it after [`scan`].
pub fn chipset_functions(windows: &[EcamWindow]) -> Vec<Function> {
    let window = windows.iter().find(|window| window.segment == 0 && window.first == 0);
    let space = window.map_or(ConfigSpace::Ports, space);
    let functions = (0..8).filter_map(|function| {
        let at = Address { bus: 0, device: 0x1f, function };
        let _guard = CONFIG.lock();
        // SAFETY: the lock keeps others off configuration space, and the windows are mapped. These are registers of the
        // standard header, whose reading has no side effect.
        let (id, class) = unsafe { (space.read(at, 0), space.read(at, 8) >> 8) };
        let (vendor, device) = (id as u16, (id >> 16) as u16);
        (vendor != u16::MAX).then_some(Function { space, segment: 0, at, vendor, device, class })
    });
    functions.collect()
}

/// Returns the PCI functions of segment 0, or `None` before the scan.
pub fn functions() -> Option<&'static [Function]> {
    FUNCTIONS.get().map(|[here, _]| here.as_slice())
}

impl Function {
    /// What the report says of a function of another segment than 0.
    pub const fn elsewhere(&self) -> Elsewhere<Address> {
        let &Self { segment, at, vendor, device, class, .. } = self;
        Elsewhere { segment: segment as u32, at, vendor, device, class }
    }

    /// The way to its configuration space.
    pub const fn space(&self) -> ConfigSpace {
        self.space
    }

    /// Its class code, 24 bits: class, subclass, programming interface.
    pub const fn class(&self) -> u32 {
        self.class
    }

    /// Reads a 32-bit register of its configuration space, whose reading has no side effect. `offset`: a multiple of 4.
    pub fn read(&self, offset: u16) -> u32 {
        let _guard = CONFIG.lock();
        // SAFETY: the lock keeps others off configuration space. ECAM was mapped before the scan.
        unsafe { self.space.read(self.at, offset) }
    }

    /// Reads the base of the sideband's registers from the bridge P2SB, function 1 of this function's device, which is the chipset's. Firmware
    /// hides that bridge: it is shown meanwhile, and hidden again.
    pub fn sideband_base(&self) -> [u32; 2] {
        let at = Address { function: 1, ..self.at };
        let _guard = CONFIG.lock();
        // SAFETY: the lock keeps others off configuration space, and nobody drives the bridge. The chipset is known to have it
        // there, with this register, which changes nothing but whether the others answer. Reading these has no side effect.
        unsafe {
            let hidden = self.space.read(at, tco::P2SB_CONTROL) & tco::P2SB_HIDDEN != 0;
            if hidden {
                self.space.write(at, tco::P2SB_CONTROL, 0);
            }
            let base = tco::SIDEBAND_BASE.map(|register| self.space.read(at, register));
            if hidden {
                self.space.write(at, tco::P2SB_CONTROL, tco::P2SB_HIDDEN);
            }
            base
        }
    }

    /// Returns the address that a memory base address register names. `None`: it names none, or the function does not
    /// answer accesses to its memory.
    pub fn memory_address(&self, index: u8) -> Option<u64> {
        let _guard = CONFIG.lock();
        // SAFETY: as in `read`.
        unsafe { self.space.memory_address(self.at, index) }
    }

    /// Takes its registers, the memory of base address register 0, for its driver: its bus mastering goes off, it is brought to full power,
    /// and up to `most` bytes are mapped, uncached, for ever. Returns the address, and how many bytes are mapped.
    ///
    /// # Errors
    /// Another core uses configuration space, or the memory has fewer than `least` bytes, is not usable, or cannot be mapped.
    pub fn take_registers(&self, least: u64, most: u64) -> Result<(u64, u64), String> {
        if !self.set_bus_master(false) {
            return Err("configuration space is in use".into());
        }
        self.wake();
        let MemoryBar { base, size, .. } = self.memory_bar(0).map_err(|e| format!("BAR 0 cannot be used: {e}"))?;
        if size < least {
            return Err(format!("BAR 0 has {size:#x} bytes; expected {least:#x} or more"));
        }
        let len = size.min(most);
        mem::map_device(base, len).map_err(|e| format!("BAR 0 at {base:#x} cannot be mapped: {e}"))?;
        self.enable_memory();
        Ok((base, len))
    }

    /// Returns what a base address register decodes. Nobody drives the function yet.
    ///
    /// # Errors
    /// The register cannot be used.
    fn memory_bar(&self, index: u8) -> Result<MemoryBar, BadBar> {
        let _guard = CONFIG.lock();
        // SAFETY: the lock keeps others off configuration space. ECAM was mapped before the scan. Nobody drives the
        // function yet, because its driver asks for the registers before it starts.
        unsafe { self.space.memory_bar(self.at, index) }
    }

    /// Brings it to full power, if firmware has left it in a deeper state, and says so in the report.
    fn wake(&self) {
        let _guard = CONFIG.lock();
        // SAFETY: as in `memory_bar`.
        let state = unsafe { self.space.wake(self.at, time::delay_micros) };
        if let Some(state) = state {
            let name = if state == 3 { "D3hot".into() } else { format!("D{state}") };
            report::found(format!("PCI function {} was in power state {name}; it is at full power now", self.at));
        }
    }

    /// Enables its BARs in memory, and disables its interrupts.
    fn enable_memory(&self) {
        let _guard = CONFIG.lock();
        // SAFETY: as in `memory_bar`.
        unsafe { self.space.update_command(self.at, 0, command::MEMORY | command::INTERRUPT_DISABLE) };
    }

    /// Whether a function with the same vendor and device number answers here, and its base address register `index` does not
    /// name `base`. A function that was taken out and put in again has lost that address.
    pub fn has_lost_bar(&self, index: u8, base: u64) -> bool {
        let Some(_guard) = CONFIG.try_lock() else { return false };
        let same = u32::from(self.device) << 16 | u32::from(self.vendor);
        // SAFETY: the lock keeps others off configuration space. ECAM was mapped before the scan. The registers are those of
        // the standard header, whose reading has no side effect.
        unsafe { self.space.read(self.at, 0) == same && self.space.bar_address(self.at, index) != base }
    }

    /// Gives a memory base address register its address again, and enables it. Nobody else has that memory: it was the function's
    /// before.
    pub fn place_bar(&self, index: u8, base: u64) {
        let _guard = CONFIG.lock();
        // SAFETY: as in `memory_bar`: the function's driver has given it up.
        unsafe {
            self.space.update_command(self.at, command::MEMORY | command::BUS_MASTER, command::INTERRUPT_DISABLE);
            self.space.set_bar_address(self.at, index, base);
            self.space.update_command(self.at, 0, command::MEMORY);
        }
    }

    /// Gives it the right to master the bus, or takes the right away. Returns false, and changes nothing, if another
    /// core uses configuration space now or if bus mastering is closed.
    pub fn set_bus_master(&self, on: bool) -> bool {
        let Some(_guard) = CONFIG.try_lock() else { return false };
        if on && CLOSED.load(Ordering::SeqCst) {
            return false;
        }
        let (clear, set) = if on { (0, command::BUS_MASTER) } else { (command::BUS_MASTER, 0) };
        // SAFETY: the lock keeps others off configuration space, and the caller drives the function.
        unsafe { self.space.update_command(self.at, clear, set) };
        true
    }
}

/// Takes bus mastering from every function, and closes it for good. `parked` says that no other core runs any more.
/// Then a core that held the lock will never release it.
pub fn clear_bus_masters(parked: bool) {
    CLOSED.store(true, Ordering::SeqCst);
    let _guard = (!parked).then(|| CONFIG.lock());
    for &Function { space, at, .. } in FUNCTIONS.get().into_iter().flatten().flatten() {
        // SAFETY: no other core uses configuration space, because of the lock or because all others are parked.
        unsafe { space.update_command(at, command::BUS_MASTER, 0) };
    }
}
