//! The guest's machine: CPUID and MSR policy, APIC, PCI, ACPI, boot protocol, exit handling.

#![cfg_attr(not(test), no_std)]

pub mod alarm;
mod atomics;
pub mod clock;
pub mod cpuid;
pub mod decode;
mod descriptor;
pub mod eli;
pub mod ioapic;
pub mod lapic;
pub mod layout;
pub mod linux;
pub mod machine;
pub mod mailbox;
pub mod mmio;
pub mod msr;
pub mod pci;
pub mod posted;
pub mod power;
pub mod quirk;
pub mod reason;
pub mod reset_vector;
pub mod tables;
pub mod uart;
pub mod vcpu;
pub mod virtio_pci;
pub mod walk;

// Not within mailbox.rs, because model.rs compiles that file a second time.
#[cfg(test)]
#[path = "mailbox/tests.rs"]
mod mailbox_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;
