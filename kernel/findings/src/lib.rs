//! What a machine has and what sidecore does about it, in sentences. Two programs say them: the hypervisor in its capability
//! report, and `sidecore-doctor` (`tools/doctor`) on a Linux that runs on the machine before. So both say the same.
//!
//! ```text
//!  CPUID, MSRs ──▶ processor::{x2apic, clock, machine_checks, speculation} ─┐
//!              ──▶ Virtualization::find ──▶ describe, completion ───────────┼──▶ ReportEntry
//!  memory, PCI, NICs ──▶ machine::{memory, pci, ...} ───────────────────────┤
//!  cores ──▶ cores::{started, absent, clocks, ...} ─────────────────────────┤
//!  frequency, microcode ──▶ speed::{means, raised, microcode} ──────────────┤
//!  IOMMUs ──▶ remapping::{unit, unreachable} (the hypervisor only) ─────────┤
//!  watchdogs ──▶ watchdogs::{tco, armed, ...} (the hypervisor only) ────────┤
//!  USB controllers ──▶ usb::controllers (the hypervisor only) ──────────────┤
//!  serial ports ──▶ consoles::{people, programs} ───────────────────────────┘
//! ```
//!
//! Functions take CPUID as a function of leaf and sub-leaf that returns EAX, EBX, ECX and EDX, and RDMSR as a function of the
//! number. They read only MSRs that CPUID or another MSR promises.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

pub mod consoles;
pub mod cores;
pub mod machine;
pub mod processor;
pub mod remapping;
pub mod speed;
pub mod usb;
mod virtualization;
pub mod watchdogs;

pub use cores::ranges;
pub use virtualization::Virtualization;

use alloc::string::String;
use control::{ReportEntry, ReportKind};

fn entry(kind: ReportKind, text: impl Into<String>) -> ReportEntry {
    ReportEntry { kind, text: text.into().into() }
}

fn found(text: impl Into<String>) -> ReportEntry {
    entry(ReportKind::Found, text)
}

fn decision(text: impl Into<String>) -> ReportEntry {
    entry(ReportKind::Decision, text)
}

fn fallback(text: impl Into<String>) -> ReportEntry {
    entry(ReportKind::Fallback, text)
}

fn warning(text: impl Into<String>) -> ReportEntry {
    entry(ReportKind::Warning, text)
}

fn missing(text: impl Into<String>) -> ReportEntry {
    entry(ReportKind::RequiredMissing, text)
}
