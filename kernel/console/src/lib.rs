//! The console back-end: a guest's console and its named byte streams (virtio 1.3 5.3, multiport).
//!
//! ```text
//!   guest                    engine's core                            control core
//!   ─────                    ─────────────                            ────────────
//!   transmitq of a port ──▶ backend::Console ──▶ ring of bytes ──▶ wire::ControlEnd::read
//!   receiveq of a port  ◀──  (output, input)  ◀── ring of bytes ◀── wire::ControlEnd::write, bell::Bell::ring
//!   control queues      ◀─▶  (handshake)      ◀─▶ ports::Ports      which ports are open, names, counters
//! ```
//!
//! Port 0 is the guest's console, `hvc0` in Linux. Further ports have a name, by which the guest finds them. Each port
//! has two bounded rings of bytes between the engine's core and the control core. Neither core ever waits for the other.
//! [`ports::Overflow`] decides what happens to output that finds its ring full.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

pub mod backend;
pub mod bell;
pub mod counters;
pub mod device;
mod handshake;
mod input;
mod message;
mod output;
pub mod ports;
mod slot;
pub mod wire;

#[cfg(test)]
mod tests;
