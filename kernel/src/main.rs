//! sidecore: a type-1 hypervisor whose I/O runs on cores of its own.
//!
//! This binary is the thin shell that binds the library crates to hardware:
//!
//! ```text
//!  start.rs ─▶ firmware.rs, mem.rs, arch/ ─▶ report.rs ─▶ cores.rs ─┬─▶ operator.rs   boot core: consoles, guests
//!                                                                  ├─▶ engines.rs    engine core: never leaves
//!                                                                  └─▶ guests/vcpu.rs on svm/ or vmx/: guest cores
//! ```
//!
//! Everything that can be said without touching hardware is elsewhere: the guest's machine in `machine`, rings and
//! switch in `engine`, memory in `memory`, the configuration in `config`, when a guest starts and stops in `lifecycle`, what
//! goes over COM2 in `control`.

#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod console;
mod cores;
#[cfg(feature = "count")]
mod count;
mod emulator;
mod engines;
mod facts;
mod firmware;
mod guests;
mod halt;
mod interrupts;
mod mem;
mod operator;
mod options;
mod panic;
mod pci;
mod power;
mod report;
mod rules;
mod settings;
mod start;
mod symbols;
mod uplink;
mod virt;
