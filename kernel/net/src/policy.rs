//! The rules of a port: what its frames may do.
//!
//! ```text
//!  into the switch:    guard ─▶ VLAN ─▶ chain ─▶ storm limit (broadcast and multicast) ─▶ switch
//!  out of the switch:  VLAN ─▶ chain ─▶ the port
//! ```
//!
//! The control core makes a [`Policy`] and never changes it. It contains its own counters and the levels of its limits,
//! which only the engine's core writes. A port without a policy is not checked.
//!
//! Rules look only at the copy of a frame's first bytes that is sent on ([`headers::LOOKED_AT`] bytes). So the receiver
//! gets what was checked.

pub mod configured;
pub mod guard;
pub mod headers;
pub mod limit;
mod refusal;
mod rules;
pub mod stage;
pub mod vlan;

pub use refusal::Refusal;
pub use rules::{Entered, Policy, UNCHECKED, carries};

#[cfg(test)]
mod frames;
#[cfg(test)]
mod tests;
