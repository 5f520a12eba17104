//! The emulator that the hypervisor runs in, if the operator's file says so, and how to end it.

#![allow(unsafe_code, reason = "ports of the emulator")]

use crate::console;
use core::sync::atomic::{AtomicBool, Ordering};
use x86_64::instructions::port::Port;

static UNDER_EMULATOR: AtomicBool = AtomicBool::new(false);

/// Allows [`leave_emulator`]: the operator's file says that the machine is an emulator with those ports.
pub fn allow_emulator_exit() {
    UNDER_EMULATOR.store(true, Ordering::Relaxed);
}

/// Whether [`allow_emulator_exit`] was called.
pub fn under_emulator() -> bool {
    UNDER_EMULATOR.load(Ordering::Relaxed)
}

/// Ends the emulator we run in, where the configuration says that there is one: QEMU's `isa-debug-exit` at port
/// 0xF4 and Bochs's 0x8900. Does nothing otherwise.
pub fn leave_emulator(success: bool) {
    if !under_emulator() {
        return;
    }
    // Bochs ends at once and takes with it what its UARTs still hold.
    console::flush();
    // SAFETY: the operator said that these ports are the emulator's.
    unsafe {
        for b in *b"Shutdown" {
            Port::<u8>::new(0x8900).write(b);
        }
        Port::<u32>::new(0xf4).write(if success { 0x10 } else { 0x11 });
    }
}
