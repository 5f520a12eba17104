//! Takes USB controllers over from the firmware. `drivers::usb` has the order, and `findings::usb` the words.

#![allow(unsafe_code, reason = "reads and writes the controllers' registers")]

use crate::{arch::time, registers::Pages};
use core::ptr;
use drivers::pci::{Address, ConfigSpace};
use drivers::usb::{Kind, Registers, TakenOver, take_over};

/// Takes the function over if it is a controller that has something to be taken over. Returns `None` for other functions, and for
/// a controller that does not answer in memory: firmware does not use it. A UHCI controller has nothing in memory. An error is the
/// address of registers that cannot be mapped.
///
/// # Safety
/// Nobody else uses configuration space or the function, and its windows are mapped.
pub unsafe fn take(space: ConfigSpace, at: Address, class: u32, pages: &mut Pages) -> Option<Result<TakenOver, u64>> {
    let kind = Kind::of(class)?;
    // SAFETY: the caller's promise.
    let memory = unsafe { space.memory_address(at, 0) };
    let base = if kind == Kind::Uhci { 0 } else { memory? };
    if kind != Kind::Uhci && !pages.map(base) {
        return Some(Err(base));
    }
    Some(Ok(take_over(kind, &mut Controller { space, at, base, pages })))
}

/// A controller.
struct Controller<'a> {
    space: ConfigSpace,
    at: Address,
    base: u64,
    pages: &'a mut Pages,
}

impl Controller<'_> {
    /// The place of a register, if it can be mapped.
    fn place(&mut self, offset: u32) -> Option<*mut u32> {
        let at = self.base.checked_add(offset.into())?;
        let mapped = at.is_multiple_of(4) && self.pages.map(at);
        mapped.then(|| ptr::with_exposed_provenance_mut(at as usize))
    }
}

impl Registers for Controller<'_> {
    fn read(&mut self, offset: u32) -> u32 {
        // SAFETY: `place` returns aligned addresses that are mapped. The crate `drivers` reads parameters and capabilities only.
        self.place(offset).map_or(u32::MAX, |at| unsafe { at.read_volatile() })
    }

    fn write(&mut self, offset: u32, value: u32) {
        if let Some(at) = self.place(offset) {
            // SAFETY: as above. It writes only what takes the controller over: the words for legacy support, and registers of OHCI.
            unsafe { at.write_volatile(value) };
        }
    }

    fn read_config(&mut self, offset: u16) -> u32 {
        // SAFETY: the promise of `take`'s caller.
        unsafe { self.space.read(self.at, offset) }
    }

    fn write_config(&mut self, offset: u16, value: u32) {
        // SAFETY: as above, and as for `write`.
        unsafe { self.space.write(self.at, offset, value) };
    }

    fn micros(&mut self) -> u64 {
        time::now_micros()
    }
}
