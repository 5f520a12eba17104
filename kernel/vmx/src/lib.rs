//! The VT-x back-end (SDM vol. 3C ch. 24 to 30): VMX operation of each core, and virtual CPUs behind
//! [`machine::vcpu::Vcpu`]. No other crate names a VMCS field.
//!
//! ```text
//!  Capabilities::read() ─▶ findings() for the report
//!                   │
//!  enable(region, capabilities)    once per core: 4 KiB for VMXON
//!                   │
//!  Vcpu::new(Parts { vmcs, msr_bitmap, ept_root, vpid, kick, .. })    on that core
//!                   │
//!  reset(start) ─▶ run() ─▶ Exit ─▶ run() ...        NMI handler: leave_entry_window(&mut rip)
//! ```
//!
//! This crate handles some things without the layers above: CR0 and CR4 (control_registers.rs), events that an exit
//! interrupted (events.rs), debug exceptions (debug.rs), and the windows for NMIs. The layers above decide what the
//! guest may do. They pass CPUID's answers as an [`Offer`], and the MSRs that do not exit as a [`Bitmap`].
//!
//! Host code on a guest core runs with interrupts off. It uses no FPU or vector registers, no SYSCALL and no SWAPGS. So
//! the guest has those registers to itself. No entry or exit switches them. They are cleared when a vCPU is reset.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod capability;
mod control_registers;
mod controls;
mod debug;
mod enable;
mod entry;
mod events;
mod exit;
mod failure;
mod fields;
mod host;
mod instructions;
mod msr;
mod offer;
mod posted;
mod reset;
mod segments;
mod split_lock;
mod vcpu;

pub use capability::Capabilities;
pub use enable::enable;
pub use entry::leave_entry_window;
pub use msr::Bitmap;
pub use offer::Offer;
pub use posted::VirtualApic;
pub use vcpu::{Parts, Vcpu};
