//! Devices that the hypervisor owns: today the UART behind its consoles and PCI configuration space; NICs and IOMMUs
//! are to live here too. What devices guests see is in `kernel/machine`.

#![cfg_attr(not(test), no_std)]

pub mod pci;
pub mod serial;
