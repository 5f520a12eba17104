//! What the machine needs of the kernel on a vCPU's core.

use crate::lapic;

/// What the kernel does for a vCPU's core.
pub trait Host {
    /// The time-stamp counter now.
    fn tsc(&self) -> u64;
    /// Time of day in nanoseconds since 1970, UTC.
    fn wall_clock(&self) -> u64;
    /// Signals the core of a vCPU of this guest, its own included.
    fn signal(&self, signal: Signal);
    /// For a guest that owns its cores' local APICs: writes a register of this core's. The value has been checked.
    fn write_apic(&self, msr: u32, value: u64);
    /// Likewise: puts this core's local APIC into its state after INIT, software-enabled, with nothing pending.
    fn reset_apic(&self);
    /// For a guest with a shadow IDT: takes the most urgent interrupt that waits in this core's local APIC, without ending
    /// it. None: there is none that it would deliver.
    fn take_interrupt(&self) -> Option<u8>;
    /// Likewise: ends the most urgent interrupt in service.
    fn end_of_interrupt(&self);
    /// A byte from the guest's serial console.
    fn console(&self, byte: u8);
}

/// A signal from one core to the core of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// An NMI: the vCPU's core is to drain its mailbox.
    Kick(usize),
    /// For a vCPU with a shadow IDT: the same, by an interrupt with this vector of the host's.
    Call(usize, u8),
    /// For a vCPU that owns its local APIC: a fixed interrupt for the guest with this vector, 0x20 or above.
    Interrupt(usize, u8),
    /// For a vCPU whose local APIC the CPU virtualizes: the notification vector.
    Notify(usize),
}

/// The time as a guest's local APIC takes it.
pub(super) fn now(host: &impl Host) -> lapic::Clock {
    lapic::Clock { tsc: host.tsc(), offset: 0 }
}
