//! The guest's machine: CPUID and MSR policy, APIC, PCI, ACPI, boot protocol, exit handling.

#![cfg_attr(not(test), no_std)]

pub mod clock;
pub mod cpuid;
pub mod decode;
pub mod ioapic;
pub mod lapic;
pub mod layout;
pub mod linux;
pub mod machine;
pub mod mailbox;
pub mod mmio;
pub mod msr;
pub mod pci;
pub mod power;
pub mod quirk;
pub mod reason;
pub mod reset_vector;
pub mod tables;
pub mod uart;
pub mod vcpu;
pub mod virtio_pci;
pub mod walk;

#[cfg(test)]
mod testing;
