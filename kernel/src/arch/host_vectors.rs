//! Vectors of the host's own interrupts.

/// The local APIC timer's vector.
pub const TIMER: u8 = 0xf0;
/// The posted-interrupt notification vector (SDM vol. 3C 30.6). It is for the CPU while a guest runs. In the host it
/// means nothing, because the vCPU's core checks for posted interrupts before each entry.
pub const NOTIFICATION: u8 = 0xf2;
/// The local APIC's spurious vector.
pub const SPURIOUS: u8 = 0xff;
