//! What sets the frequency of a core, what an engine's core writes for full speed, and how fast it was.
//!
//! ```text
//!  CPUID ─▶ Processor ─┬─▶ raise()         an engine's core, once: MSRs written for full speed ─▶ Outcome
//!                      ├─▶ Meter::look()   an engine's core, once a second: average speed, throttling
//!                      ├─▶ watch()         an engine's core, once: the longest time for which something else had it
//!                      ├─▶ microcode()     each core, once: the revision of its microcode
//!                      └─▶ sleep()         how a core without work sleeps
//! ```
//!
//! All of it goes through [`Msrs`], whose accesses may fail. `findings::speed` makes the report's sentences of the outcomes.
//!
//! Follows SDM vol. 3B, chapter "Power and Thermal Management" (HWP, EPB, PERF_CTL, thermal status), and vol. 4 for the registers
//! of single models; AMD APM vol. 2, chapter "Hardware Performance Monitoring and Control" (P-states, boost, CPPC, APERF and MPERF).

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod gap;
mod idle;
mod meter;
mod microcode;
mod msrs;
mod processor;
mod raise;

pub use gap::{Watched, watch};
pub use idle::{Halts, Sleep, sleep};
pub use meter::{Causes, Look, Meter};
pub use microcode::{has_microcode, microcode};
pub use msrs::{Access, Msrs, Refused};
pub use processor::{Features, Processor, Vendor};
pub use raise::{Asked, Left, Outcome, Turbo, raise};

#[cfg(test)]
mod tests;
