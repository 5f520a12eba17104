//! Stops the machine early in the boot, when there is nothing to clean up yet.

use crate::{boots::failure, console, emulator, heap, step};
use control::Event;

/// Writes the reason to the consoles and stops. Never returns.
pub fn halt(why: core::fmt::Arguments<'_>) -> ! {
    step::code(step::Step::Halt);
    console::print(format_args!("sidecore stops: {why}\n"));
    if heap::is_ready() {
        console::send_event(Ok(Event::End { reason: control::sentence(why) }));
    }
    console::flush();
    failure::fails();
    emulator::leave_emulator(false);
    loop {
        x86_64::instructions::hlt();
    }
}
