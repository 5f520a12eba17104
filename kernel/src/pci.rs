//! The PCI functions of the machine: which there are, and who may master the bus.

#![allow(unsafe_code, reason = "configuration space, and who may write memory")]

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use drivers::pci::{Address, BadBar, ConfigSpace, MemoryBar, command};
use spin::{Mutex, Once};

/// A PCI function that is not a bridge.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Where it is.
    pub at: Address,
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class code, 24 bits.
    class: u32,
}

/// Class of network controllers, in the upper 8 bits.
const NETWORK: u32 = 2;
const BRIDGE: u32 = 6;

/// PCI functions that may master the bus: everything that is not a bridge.
static FUNCTIONS: Once<(ConfigSpace, Vec<Function>)> = Once::new();
/// Held by who uses configuration space once several cores run.
static CONFIG: Mutex<()> = Mutex::new(());
/// No function gets the right to master the bus any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Finds all PCI functions and gives how many there are. NICs that the firmware has booted from lose the right to write
/// memory before that memory becomes somebody else's.
pub fn scan(space: ConfigSpace) -> usize {
    let (_, list) = FUNCTIONS.call_once(|| {
        let _guard = CONFIG.lock();
        let mut list = Vec::new();
        // SAFETY: only the boot core runs, and an ECAM window was mapped by the caller.
        unsafe {
            space.scan(|at, vendor, device, class| {
                if class >> 16 != BRIDGE {
                    list.push(Function { at, vendor, device, class });
                }
            });
            for function in list.iter().filter(|f| f.class >> 16 == NETWORK) {
                space.update_command(function.at, command::BUS_MASTER, command::INTERRUPT_DISABLE);
            }
        }
        (space, list)
    });
    list.len()
}

/// The PCI functions that were found, and the way to their configuration space.
pub fn functions() -> Option<(ConfigSpace, &'static [Function])> {
    FUNCTIONS.get().map(|(space, list)| (*space, list.as_slice()))
}

impl Function {
    /// A base address register, for who is to drive the function.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn memory_bar(&self, index: u8) -> Result<MemoryBar, BadBar> {
        let _guard = CONFIG.lock();
        let (space, _) = functions().ok_or(BadBar::Absent)?;
        // SAFETY: the lock keeps others off configuration space, ECAM was mapped before the scan, and nobody drives the
        // function yet: its driver asks.
        unsafe { space.memory_bar(self.at, index) }
    }

    /// Lets it answer in memory, without interrupts.
    pub fn enable_memory(&self) {
        let _guard = CONFIG.lock();
        if let Some((space, _)) = functions() {
            // SAFETY: as in `memory_bar`.
            unsafe { space.update_command(self.at, 0, command::MEMORY | command::INTERRUPT_DISABLE) };
        }
    }

    /// Gives it the right to master the bus, or takes that away. False: somebody else is at configuration space just now,
    /// or the machine is ending; nothing was changed.
    pub fn set_bus_master(&self, on: bool) -> bool {
        let (Some(_guard), Some((space, _))) = (CONFIG.try_lock(), functions()) else { return false };
        if on && CLOSED.load(Ordering::SeqCst) {
            return false;
        }
        let (clear, set) = if on { (0, command::BUS_MASTER) } else { (command::BUS_MASTER, 0) };
        // SAFETY: the lock keeps others off configuration space; the caller drives the function.
        unsafe { space.update_command(self.at, clear, set) };
        true
    }
}

/// Takes from every device the right to write memory, for good. `parked`: no other core runs any more, and whoever held the
/// lock will never give it back.
pub fn clear_bus_masters(parked: bool) {
    CLOSED.store(true, Ordering::SeqCst);
    let _guard = (!parked).then(|| CONFIG.lock());
    if let Some((space, list)) = FUNCTIONS.get() {
        for &Function { at, .. } in list {
            // SAFETY: no other core uses configuration space: by the lock, or because it is parked.
            unsafe { space.update_command(at, command::BUS_MASTER, 0) };
        }
    }
}
