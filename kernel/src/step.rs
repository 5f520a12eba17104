//! Tells how far the boot has come: a code at I/O port 0x80, and a line on the consoles.

#![allow(unsafe_code, reason = "the port of the codes")]

use crate::{console, machine_watchdog};
pub use boot::step::Step;
use x86_64::instructions::port::Port;

/// Notes that a step begins, and feeds the machine's watchdog.
pub fn begin(step: Step) {
    code(step);
    machine_watchdog::feed();
    console::print(format_args!("step {:02X}: {}\n", step.code(), step.text()));
}

/// Writes the code of a step only.
pub fn code(step: Step) {
    // SAFETY: the port of POST codes has no other use on a PC. Nothing reads it.
    unsafe { Port::<u8>::new(boot::step::PORT).write(step.code()) };
}
