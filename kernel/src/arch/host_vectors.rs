//! Vectors of the host's own interrupts.

/// The local APIC timer's vector.
pub const TIMER: u8 = 0xf0;
/// Posted-interrupt notification (SDM vol. 3C 30.6): for the CPU while a guest runs. In the host it has no meaning, because
/// the vCPU's core looks by itself before each entry.
pub const NOTIFICATION: u8 = 0xf2;
/// The local APIC's spurious vector.
pub const SPURIOUS: u8 = 0xff;
