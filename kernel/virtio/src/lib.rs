//! The device's side of virtio 1.3, for devices of every kind: configuration, queues, interrupts.
//!
//! ```text
//!   driver ──▶ transport (virtio-pci) ──▶ shared::Shared ◀── engine
//!              activate, reset, kick       phase, queue addresses, features, MSI-X table
//!   driver ──▶ rings in guest memory  ◀── queue::Queue ◀── engine
//!              split or packed             take, complete, publish, arm
//! ```
//!
//! [`shared::Shared`] is the state that a device's transport and its engine share. It consists of atomics; neither side
//! waits for the other. [`queue`] and [`chain`] are the only code that reads rings. They read an index or a descriptor
//! once, copy it and check the copy. A broken rule is a [`fault`]. [`state`] is a quiesced device as plain data.
//!
//! This crate does not know what the bytes of a request mean. Feature bits, configuration space and counters of one
//! kind of device belong to the back-end of that kind. This crate knows only the feature bits of the ring and the
//! transport.
//!
//! Nothing here locks, waits or allocates. Nothing that a guest writes can make it panic.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

#[cfg(any(test, feature = "testing"))]
extern crate alloc;

mod atomics;
pub mod chain;
pub mod config;
pub mod counters;
pub mod fault;
pub mod kick;
pub mod line;
pub mod msix;
pub mod phase;
#[cfg(all(test, not(miri)))]
mod phase_model;
pub mod queue;
pub mod shared;
pub mod state;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]
pub mod testing;

#[cfg(test)]
mod tests;
