//! Drivers for the devices that the hypervisor owns: the UARTs behind its consoles, PCI configuration space, the power
//! switch, what divides the CPU's cache, the IOMMUs and the timers' interrupts, which are switched off, and USB controllers, which are taken over from firmware. Each NIC's driver is a crate of its own beside this one. The
//! devices that guests see are in `kernel/machine`.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

pub mod cache;
pub mod fch;
pub mod generic;
pub mod hpet;
pub mod ilo;
pub mod ioapic;
pub mod ipmi;
pub mod nmi;
pub mod pci;
pub mod power;
pub mod remapping;
pub mod serial;
pub mod tco;
pub mod usb;
pub mod watchdog;
pub mod wdat;
