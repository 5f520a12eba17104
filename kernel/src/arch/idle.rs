//! Enables interrupts for a moment: to halt until one arrives, or to take those that are pending.
//!
//! Host code runs with interrupts off. Only the two functions here enable them. NMIs are kicks from other cores and may
//! arrive anywhere.

#![allow(unsafe_code, reason = "opens interrupts, and moves the interrupted code out of its halt")]

use crate::arch::frame::Frame;
use core::sync::atomic::AtomicBool;

unsafe extern "C" {
    static park_window_start: u8;
    static park_window_end: u8;
    fn park(kick: *const AtomicBool);
}

/// Halts this core until it is kicked or interrupted. Returns at once if `kick` is set. On return interrupts are off
/// again.
pub fn wait(kick: &AtomicBool) {
    // SAFETY: interrupts may come here. Every core that runs this has loaded its descriptor tables, and the handlers
    // touch nothing that host code holds.
    unsafe { park(kick) };
}

/// Enables interrupts just long enough to take those that are pending.
pub fn take_pending() {
    // SAFETY: as in `wait`. The first NOP is in STI's interrupt shadow. Interrupts come after it.
    unsafe { core::arch::asm!("sti", "nop", "nop", "cli", options(nostack)) };
}

/// Makes interrupted code that was about to halt return instead.
pub fn leave_park(frame: &mut Frame) {
    let window = &raw const park_window_start as u64..&raw const park_window_end as u64;
    if window.contains(&frame.rip) {
        frame.rip = window.end;
    }
}
