//! Devices that the hypervisor owns: today the UART behind its consoles, PCI configuration space and the power switch;
//! IOMMUs are to live here too, and each NIC's driver is a crate of its own beside this one. What devices guests see is
//! in `kernel/machine`.

#![cfg_attr(not(test), no_std)]

pub mod pci;
pub mod power;
pub mod serial;
