//! What the CPU's speculation lets a guest read, and what is done about it.
//!
//! ```text
//!  CPUID, IA32_ARCH_CAPABILITIES ─▶ Processor ─▶ affected() ─▶ Plan ─┬─▶ begin()   a core gets a guest: MSRs written once
//!                                                                   ├─▶ Switch    what assembly does at entry and exit
//!                                                                   └─▶ status()  the report's sentences
//! ```
//!
//! A core runs one guest until that guest stops. So predictions of another guest matter only when a core gets a guest, and
//! [`Plan::begin`] is the only place that deals with them. Everything else keeps one guest from the host's data.
//!
//! Follows SDM vol. 4 ch. 2 and vol. 2A "CPUID"; APM vol. 2 3.2.8, 3.2.9 and vol. 3 appendix E; Intel's and AMD's
//! advisories. Names are those of Linux under /sys/devices/system/cpu/vulnerabilities.

#![cfg_attr(not(test), no_std)]

mod affected;
mod begin;
mod plan;
mod processor;
mod status;
mod switch;

pub use affected::Vulnerabilities;
pub use plan::{Bhb, Branches, Msrs, Physical, Plan, Rsb};
pub use processor::{ArchCapabilities, Leaf, Processor, Vendor};
pub use status::Status;
pub use switch::{Steps, Switch};

#[cfg(test)]
mod tests;
