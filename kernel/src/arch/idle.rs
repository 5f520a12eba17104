//! Enables interrupts for a moment: to halt until one arrives, or to take those that are pending.
//!
//! Host code runs with interrupts off. Only the functions here enable them. NMIs are kicks from other cores and may
//! arrive anywhere.

#![allow(unsafe_code, reason = "opens interrupts, and moves the interrupted code out of its halt")]

use crate::arch::frame::Frame;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

unsafe extern "C" {
    static park_window_start: u8;
    static park_window_end: u8;
    fn park(kick: *const AtomicBool);
    fn park_deep(kick: *const AtomicBool, hint: u32);
}

/// The hint for MWAIT of a core without work. 0: it halts by HLT.
static HINT: AtomicU32 = AtomicU32::new(0);

/// Has cores without work sleep by MWAIT from now on.
pub fn sleep_by(sleep: speed::Sleep) {
    HINT.store(sleep.hint, Ordering::Relaxed);
}

/// Halts this core until it is kicked or interrupted. Returns at once if `kick` is set. On return interrupts are off
/// again.
pub fn wait(kick: &AtomicBool) {
    // SAFETY: interrupts may come here. Every core that runs this has loaded its descriptor tables, and the handlers
    // touch nothing that host code holds.
    unsafe { park(kick) };
}

/// The same for a core without work, which may wake late: it sleeps as deep as it can.
pub fn sleep(kick: &AtomicBool) {
    match HINT.load(Ordering::Relaxed) {
        0 => wait(kick),
        // SAFETY: as in `wait`. The processor has MWAIT and this state, or nobody would have set the hint.
        hint => unsafe { park_deep(kick, hint) },
    }
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
