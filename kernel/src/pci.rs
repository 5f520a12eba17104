//! The machine's PCI functions. Finds them, and controls which may master the bus.

#![allow(unsafe_code, reason = "configuration space, and who may write memory")]

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use drivers::pci::{Address, BadBar, ConfigSpace, MemoryBar, command};
use spin::{Mutex, Once};

/// A PCI function that is not a bridge.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its address.
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

/// The way to configuration space, and all PCI functions except bridges.
static FUNCTIONS: Once<(ConfigSpace, Vec<Function>)> = Once::new();
/// Guards configuration space. Its holder may use it.
static CONFIG: Mutex<()> = Mutex::new(());
/// Whether bus mastering is closed: no function gets the right any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Finds all PCI functions and returns their number, and those that were active. Takes bus mastering, MSI and MSI-X from all
/// but bridges: what the firmware has started could still write to memory that is handed out later. A driver of ours
/// gives its function bus mastering again.
pub fn scan(space: ConfigSpace) -> (usize, Vec<Function>) {
    let mut were_active = Vec::new();
    let (_, list) = FUNCTIONS.call_once(|| {
        let _guard = CONFIG.lock();
        let mut list: Vec<Function> = Vec::new();
        // SAFETY: only the boot core runs, and the caller has mapped the ECAM window.
        unsafe {
            space.scan(|at, vendor, device, class| {
                if class >> 16 != BRIDGE {
                    list.push(Function { at, vendor, device, class });
                }
            });
            were_active.extend(list.iter().filter(|function| space.silence(function.at).any()));
        }
        (space, list)
    });
    (list.len(), were_active)
}

/// Returns the way to configuration space and the PCI functions found, or `None` before the scan.
pub fn functions() -> Option<(ConfigSpace, &'static [Function])> {
    FUNCTIONS.get().map(|(space, list)| (*space, list.as_slice()))
}

impl Function {
    /// Its class code, 24 bits: class, subclass, programming interface.
    pub const fn class(&self) -> u32 {
        self.class
    }

    /// Returns what a base address register decodes. The function's driver calls it.
    ///
    /// # Errors
    /// The register cannot be used.
    pub fn memory_bar(&self, index: u8) -> Result<MemoryBar, BadBar> {
        let _guard = CONFIG.lock();
        let (space, _) = functions().ok_or(BadBar::Absent)?;
        // SAFETY: the lock keeps others off configuration space. ECAM was mapped before the scan. Nobody drives the
        // function yet, because its driver calls this before it starts.
        unsafe { space.memory_bar(self.at, index) }
    }

    /// Enables its BARs in memory, and disables its interrupts.
    pub fn enable_memory(&self) {
        let _guard = CONFIG.lock();
        if let Some((space, _)) = functions() {
            // SAFETY: as in `memory_bar`.
            unsafe { space.update_command(self.at, 0, command::MEMORY | command::INTERRUPT_DISABLE) };
        }
    }

    /// Whether a function with the same vendor and device number answers here, and its base address register `index` does not
    /// name `base`. A function that was taken out and put in again has lost that address.
    pub fn has_lost_bar(&self, index: u8, base: u64) -> bool {
        let (Some(_guard), Some((space, _))) = (CONFIG.try_lock(), functions()) else { return false };
        let same = u32::from(self.device) << 16 | u32::from(self.vendor);
        // SAFETY: the lock keeps others off configuration space. ECAM was mapped before the scan. The registers are those of
        // the standard header, whose reading has no side effect.
        unsafe { space.read(self.at, 0) == same && space.bar_address(self.at, index) != base }
    }

    /// Gives a memory base address register its address again, and enables it. Nobody else has that memory: it was the function's
    /// before.
    pub fn place_bar(&self, index: u8, base: u64) {
        let _guard = CONFIG.lock();
        if let Some((space, _)) = functions() {
            // SAFETY: as in `memory_bar`: the function's driver has given it up.
            unsafe {
                space.update_command(self.at, command::MEMORY | command::BUS_MASTER, command::INTERRUPT_DISABLE);
                space.set_bar_address(self.at, index, base);
                space.update_command(self.at, 0, command::MEMORY);
            }
        }
    }

    /// Gives it the right to master the bus, or takes the right away. Returns false, and changes nothing, if another
    /// core uses configuration space now or if bus mastering is closed.
    pub fn set_bus_master(&self, on: bool) -> bool {
        let (Some(_guard), Some((space, _))) = (CONFIG.try_lock(), functions()) else { return false };
        if on && CLOSED.load(Ordering::SeqCst) {
            return false;
        }
        let (clear, set) = if on { (0, command::BUS_MASTER) } else { (command::BUS_MASTER, 0) };
        // SAFETY: the lock keeps others off configuration space, and the caller drives the function.
        unsafe { space.update_command(self.at, clear, set) };
        true
    }
}

/// Takes bus mastering from every function, and closes it for good. `parked` says that no other core runs any more.
/// Then a core that held the lock will never release it.
pub fn clear_bus_masters(parked: bool) {
    CLOSED.store(true, Ordering::SeqCst);
    let _guard = (!parked).then(|| CONFIG.lock());
    if let Some((space, list)) = FUNCTIONS.get() {
        for &Function { at, .. } in list {
            // SAFETY: no other core uses configuration space, because of the lock or because all others are parked.
            unsafe { space.update_command(at, command::BUS_MASTER, 0) };
        }
    }
}
