//! The x86_64 CPU as the hypervisor itself uses it: descriptor tables, interrupts, local APIC, time,
//! vector registers.

pub mod apic;
pub mod cpuid;
pub mod frame;
pub mod gdt;
pub mod host_vectors;
pub mod hpet;
pub mod idle;
pub mod idt;
pub mod ioapic;
pub mod msr;
pub mod number;
pub mod pic;
pub mod random;
pub mod rtc;
pub mod time;
pub mod timer;
pub mod vector;

/// Index of a core in the hypervisor's numbering: the boot core is 0, the others follow in the firmware's order.
pub type CoreIndex = usize;

pub use findings::cores::MAX_CORES;
