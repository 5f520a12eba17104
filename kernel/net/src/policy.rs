//! The rules of a port: which frames may pass it.
//!
//! ```text
//!  into the switch:    guard ─▶ VLAN ─▶ claims ─▶ chain ─▶ switch ─▶ storm limit, if the frame is flooded
//!  out of the switch:  VLAN ─▶ chain ─▶ the port
//! ```
//!
//! The control core makes a [`Policy`] and never changes it. It contains its own counters and the levels of its limits.
//! Only the engine's core writes these. A port without a policy is not checked.
//!
//! Rules look only at a copy of the frame's first [`headers::LOOKED_AT`] bytes. The receiver gets these bytes from the
//! same copy, so it gets what was checked.

pub mod claims;
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
