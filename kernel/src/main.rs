//! sidecore: a type-1 hypervisor whose I/O runs on separate cores.
//!
//! This binary connects the library crates to the hardware:
//!
//! ```text
//!  start.rs ─▶ firmware.rs, mem.rs, arch/ ─▶ report.rs ─▶ cores.rs ─┬─▶ operator.rs   boot core: consoles, guests
//!                                                                  ├─▶ engines.rs    engine core: never leaves
//!                                                                  └─▶ guests/vcpu.rs on svm/ or vmx/: guest cores
//! ```
//!
//! Everything that does not touch hardware is in a library crate:
//!
//! - `machine`: the guest's machine.
//! - `engine`, `virtio`, `net`, `block`, `entropy`: the engine's loop, the rings, the switch, the disks, the entropy
//!   device.
//! - `memory`: page frames, page tables and guest memory.
//! - `config`: the configuration.
//! - `lifecycle`: when a guest starts and stops.
//! - `control`: what goes over COM2, and the operator's shell.

#![no_std]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![no_main]

extern crate alloc;

mod apply;
mod arch;
mod boots;
mod cache;
mod channel;
mod console;
mod cores;
#[cfg(feature = "count")]
mod count;
mod disks;
mod emulator;
mod engines;
mod facts;
mod firmware;
mod guests;
mod halt;
mod heap;
mod interrupts;
mod machine_check;
mod machine_watchdog;
mod management;
mod maps;
mod mem;
mod modules;
mod nmi;
mod operator;
mod options;
mod panic;
mod pci;
mod power;
#[cfg(feature = "read-memory")]
mod read_memory;
mod registers;
mod remapping;
mod report;
mod rules;
mod screen;
mod settings;
mod speed;
mod start;
mod step;
mod symbols;
mod trace;
mod uplink;
mod usb;
mod virt;
mod virtio_pci;
mod watchdog;
