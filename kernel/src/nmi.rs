//! NMIs of the machine itself: the count of those that cores send to the boot core, and the chipset's latches of a cause. The
//! crate `drivers` (`nmi`) decides; `interrupts.rs` counts and tells.

#![allow(unsafe_code, reason = "the machine's NMI latch is a port")]

use drivers::nmi::{Status, Tally};
use x86_64::instructions::port::Port;

/// The NMIs that cores send to the boot core.
pub static TO_BOOT_CORE: Tally = Tally::new();

/// Reads and clears the chipset's latches of what has caused an NMI. The next error is seen then.
pub fn take_latches() -> Status {
    let mut control = Port::<u8>::new(0x61);
    // SAFETY: this is the NMI status and control register. Reading it has no effect.
    let status = Status::from_bits(unsafe { control.read() });
    for value in status.acknowledge().into_iter().flatten() {
        // SAFETY: the values clear the latches and leave the register's other bits as they are.
        unsafe { control.write(value) };
    }
    status
}

/// What the chipset had latched before the boot, in words. Firmware, or what ran before, has not taken the NMI. Called once, on the
/// boot core.
pub fn latched_before() -> impl Iterator<Item = &'static str> {
    let status = take_latches();
    [(status.system_error, SERR), (status.io_check, IOCHK)].into_iter().filter(|cause| cause.0).map(|cause| cause.1)
}

/// The cause SERR#, in words.
pub const SERR: &str = "SERR#: a PCI device or memory";
/// The cause IOCHK#, in words.
pub const IOCHK: &str = "IOCHK#: a device on the LPC bus";
