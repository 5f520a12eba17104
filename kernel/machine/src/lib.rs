//! The guest's machine: everything that a guest sees of its hardware, and what happens between an exit and the next
//! entry.
//!
//! ```text
//!                      ┌──────────────── machine::Machine, one for each life of a guest ────────────────┐
//!   kernel: vCPU loop  │  entry: mailbox, timer, injection          exits: what is done about each exit │
//!   svm, vmx: Vcpu ◀──▶│                                                                                │
//!                      │  registers   CPUID, MSRs, CR8, XCR0        ──▶ cpuid, msr, lapic               │
//!                      │  port        IN, OUT, INS, OUTS            ──▶ uart, power, pci                │
//!                      │  nested fault  loads and stores            ──▶ decode, mmio ──▶ ioapic, pci    │
//!                      └───────┬──────────────────────────────────────────────────────┬─────────────────┘
//!   engine, other cores ──▶ mailbox, posted                       virtio_pci ──▶ virtio::Shared ◀── engine
//! ```
//!
//! Where to begin:
//!
//! - [`machine`]: the parts of one guest and the loop of a vCPU. [`vcpu::Vcpu`] is what the two back-ends implement.
//! - Boot: [`linux`] loads a bzImage, [`pvh`] an [`elf`] file, which is a kernel or firmware. [`tables`] writes the ACPI
//!   tables. [`reset_vector`] is what a guest without firmware has in its place. [`layout`] has all addresses.
//! - Policy: the tables in [`cpuid`] and [`msr`] say what a guest sees. What they do not name does not exist for the
//!   guest.
//! - Interrupts: [`mailbox`] takes them from other cores to a vCPU. Then one of three things delivers them: [`lapic`]
//!   in software, [`posted`] where the CPU virtualizes the local APIC, or the guest's own local APIC ([`eli`] shadows
//!   its IDT). [`ioapic`] serves the console and the power button.
//! - Devices: [`uart`], [`power`], [`pm_timer`], [`cmos`], and the functions on the PCI bus ([`pci`]). The bus knows a function by a trait
//!   ([`pci::function::Function`]); today all of them are [`virtio_pci::VirtioPci`].
//! - Measuring: [`reason`] counts exits and their cycles, [`observe`] shows each exit to an observer. [`kernel_addresses`]
//!   reads where the guest's kernel is.
//!
//! The crate knows only the transport state of a virtio device ([`virtio`]). It knows neither the engine, which serves
//! the queues, nor the kind of the device. It names no field of a VMCS or VMCB. It touches no hardware: the kernel does
//! that behind [`machine::Host`]. So all of it is tested on a development machine.
//!
//! Three rules hold everywhere:
//!
//! - Nothing that a guest does makes this code panic. The machine refuses it as hardware would, and counts the refusal
//!   ([`machine::Refusal`]).
//! - Guest memory is read once and copied before it is checked, because another vCPU may change it.
//! - Where the order of accesses between cores matters, the file has a proof, and there is a model under loom
//!   (`model.rs`, `eli/model.rs`).

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

#[cfg(all(feature = "testing", not(test)))]
extern crate std;

pub mod alarm;
mod atomics;
mod bitmap;
pub mod clock;
pub mod cmos;
pub mod control_registers;
pub mod cpuid;
pub mod decode;
mod descriptor;
pub mod elf;
pub mod eli;
pub mod ioapic;
pub mod kernel_addresses;
pub mod lapic;
pub mod layout;
pub mod linux;
pub mod machine;
pub mod mailbox;
pub mod mmio;
pub mod msr;
pub mod observe;
pub mod pci;
pub mod placement;
pub mod pm_timer;
pub mod posted;
pub mod power;
pub mod pvh;
pub mod quirk;
pub mod reason;
pub mod reset_vector;
pub mod split_lock;
pub mod splitter;
pub mod tables;
pub mod uart;
pub mod vcpu;
pub mod virtio_pci;
pub mod walk;

// These tests are not in mailbox.rs, because model.rs compiles that file a second time.
#[cfg(test)]
#[path = "mailbox/tests.rs"]
mod mailbox_tests;
#[cfg(test)]
mod model;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, reason = "the fields are the registers")]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "for tests")]
pub mod testing;
