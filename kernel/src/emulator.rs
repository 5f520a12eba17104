//! Ends the emulator that the hypervisor runs in. The word `emulator` on the command line says that there is one.

#![allow(unsafe_code, reason = "ports of the emulator")]

use crate::console;
use core::sync::atomic::{AtomicBool, Ordering};
use x86_64::instructions::port::Port;

static UNDER_EMULATOR: AtomicBool = AtomicBool::new(false);

/// Allows [`leave_emulator`]. The command line says that the machine is an emulator.
pub fn allow_emulator_exit() {
    UNDER_EMULATOR.store(true, Ordering::Relaxed);
}

/// Whether [`allow_emulator_exit`] was called.
pub fn under_emulator() -> bool {
    UNDER_EMULATOR.load(Ordering::Relaxed)
}

/// Ends the emulator by its port: 0xF4 of QEMU's `isa-debug-exit`, or 0x8900 of Bochs. Does nothing if
/// [`allow_emulator_exit`] was not called.
pub fn leave_emulator(success: bool) {
    if !under_emulator() {
        return;
    }
    // Bochs ends at once and loses what its UARTs still hold.
    console::flush();
    // SAFETY: the operator's command line says that these ports are the emulator's.
    unsafe {
        for b in *b"Shutdown" {
            Port::<u8>::new(0x8900).write(b);
        }
        Port::<u32>::new(0xf4).write(if success { 0x10 } else { 0x11 });
    }
}
