//! One guest's machine: what its vCPUs share, and what happens between an exit and the next entry.
//!
//! ```text
//!   attach ──▶ before_entry ──▶ Run ──▶ entering_guest ──▶ Vcpu::run ──▶ left_guest ──▶ handle ─┐
//!                   ▲    └────▶ Wait ─▶ Mailbox::halting, sleep ───────▶ left_guest ──┐         │
//!                   └─────────────────────────────────────────────────────────────────┴─────────┘
//! ```
//!
//! Each vCPU's core runs this loop with its own [`Context`]. The kernel owns the loop, because only the kernel can mask
//! kicks and halt the core.
//!
//! Interrupts reach a vCPU only through its mailbox. So [`Machine::deliver`], which the engine calls, takes no lock.
//! The machine's lock is for the devices with registers (console, IOAPIC, PCI), which several vCPUs may access at once.
//!
//! Files: `state` is the machine itself and how it is made. `entry` prepares an entry. `exits` handles an exit with the
//! help of `registers`, `local_apic`, `port` and `nested_fault`. `classify` finds the reason of an exit, and `record`
//! counts it. `deliver` sends interrupts. `virtualized` and `shadow` hold what differs for two kinds of guests.

mod classify;
mod context;
mod control_registers;
mod deliver;
mod devices;
mod entry;
mod exits;
mod fair;
mod host;
mod hypercall;
mod local_apic;
mod nested_fault;
mod outcome;
mod port;
mod record;
mod refusals;
mod registers;
mod settings;
mod shadow;
mod shadowing;
mod state;
mod stop;
mod tsc;
mod virtualized;

pub use context::Context;
pub use entry::Entry;
pub use exits::Next;
pub use host::{Host, Signal};
pub use refusals::Refusal;
pub use settings::{Error, MAX_HEAP, MAX_VCPUS, Platform, Settings};
pub use state::Machine;
pub use stop::Stop;

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "for tests")]
pub mod testing;
#[cfg(test)]
mod tests;
