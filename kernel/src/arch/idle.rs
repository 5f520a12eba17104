//! Opens interrupts: to halt until one arrives, or to take those that are pending.
//!
//! Host code runs with interrupts off. They are opened in two places: in `park`, and by a guest core after an exit that a
//! physical interrupt caused. NMIs are kicks from other cores and may arrive anywhere.

#![allow(unsafe_code, reason = "opens interrupts, and moves the interrupted code out of its halt")]

use crate::arch::frame::Frame;
use core::sync::atomic::AtomicBool;

unsafe extern "C" {
    static park_window_start: u8;
    static park_window_end: u8;
    fn park(kick: *const AtomicBool);
}

/// Halts this core until it is kicked or interrupted; returns at once if `kick` is set. Interrupts are off again on
/// return.
pub fn wait(kick: &AtomicBool) {
    // SAFETY: interrupts may be taken here: the descriptor tables are loaded on every core that gets this far, and
    // the handlers touch nothing that host code holds.
    unsafe { park(kick) };
}

/// Opens interrupts for as long as it takes to deliver those that are pending.
pub fn take_pending() {
    // SAFETY: as in `wait`. The NOP gives STI's shadow an instruction to cover.
    unsafe { core::arch::asm!("sti", "nop", "nop", "cli", options(nostack)) };
}

/// What was interrupted was about to halt: it does not any more.
pub fn leave_park(frame: &mut Frame) {
    let window = &raw const park_window_start as u64..&raw const park_window_end as u64;
    if window.contains(&frame.rip) {
        frame.rip = window.end;
    }
}
