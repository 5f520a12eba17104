//! What the machine needs from the kernel on a vCPU's core.

use super::context::Context;
use crate::{lapic, observe::Observer};

/// What the kernel does for a vCPU's core.
pub trait Host: Observer {
    /// Returns the time-stamp counter.
    fn tsc(&self) -> u64;
    /// Returns the time of day in nanoseconds since 1970, UTC.
    fn wall_clock(&self) -> u64;
    /// Signals the core of a vCPU of this guest. It may be this core.
    fn signal(&self, signal: Signal);
    /// Writes a register of this core's local APIC, for a guest that owns it. The caller has checked the value.
    fn write_apic(&self, msr: u32, value: u64);
    /// Puts this core's local APIC into its state after INIT, for a guest that owns it. The APIC is then
    /// software-enabled, and nothing is pending.
    fn reset_apic(&self);
    /// Takes the most urgent interrupt that waits in this core's local APIC, for a guest with a shadow IDT. Does not
    /// end the interrupt. Returns `None` if the APIC would deliver none.
    fn take_interrupt(&self) -> Option<u8>;
    /// Ends the most urgent interrupt in service, for a guest with a shadow IDT.
    fn end_of_interrupt(&self);
    /// Takes a byte from the guest's serial console.
    fn console(&self, byte: u8);
}

/// A signal from one core to the core of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// An NMI. The vCPU's core must drain its mailbox.
    Kick(usize),
    /// An interrupt with this vector of the host's, for a vCPU with a shadow IDT. The core must drain its mailbox.
    Call(usize, u8),
    /// A fixed interrupt for the guest with this vector (0x20 or above), for a vCPU that owns its local APIC.
    Interrupt(usize, u8),
    /// The notification vector, for a vCPU whose local APIC the CPU virtualizes.
    Notify(usize),
}

/// Returns the time in the form that a vCPU's local APIC takes.
pub(super) fn now(host: &impl Host, context: &Context) -> lapic::Clock {
    lapic::Clock { tsc: host.tsc(), offset: context.tsc_offset }
}
