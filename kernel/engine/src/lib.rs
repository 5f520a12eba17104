//! The I/O engine: what an I/O core runs, without the hardware.
//!
//! ```text
//!   guest cores                          I/O core                            control core
//!   ───────────                          ────────                            ────────────
//!   transport ── shared::Shared ──▶ engine::Engine ◀── control::Control ───── start, stop,
//!   (virtio-pci)  activate, reset     │  schedule: whom next                  move a device
//!                                     │  backend: what the bytes mean
//!   rings in      ── queue::Queue ──▶ │  net::Net ── switch::Switch
//!   guest memory                      ▼
//!                             shared::Deliver: interrupts, however the kernel brings them there
//! ```
//!
//! [`shared::Shared`] is all that a device's transport and its engine have in common, atomics only. [`queue`] and
//! [`chain`] are the device's side of a virtqueue, the only code that reads rings; everything they hand on has
//! been copied and checked. [`device`] is a virtual device in use, whose guest loses it by breaking a rule
//! ([`fault`]). [`backend`] is the contract with what gives requests a meaning, and [`net`] the one there is.
//! [`engine`] turns it all. It polls a queue or waits for its [`doorbell`], as [`requests`] says; [`uplink`] is the way
//! out of the machine. Other cores read [`stats`] without stopping anything.
//!
//! Nothing here locks or waits, memory is allocated when an engine is made and never afterwards, and nothing that a guest writes can make it panic.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod atomics;
pub mod backend;
pub mod chain;
pub mod config;
pub mod control;
pub mod device;
pub mod doorbell;
pub mod engine;
pub mod fault;
#[cfg(all(test, not(miri)))]
mod model;
pub mod msix;
pub mod net;
pub mod offload;
mod phase;
pub mod policy;
pub mod ports;
pub mod queue;
pub mod requests;
pub mod schedule;
pub mod shared;
mod slot;
pub mod stats;
pub mod switch;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod uplink;

#[cfg(test)]
mod tests;
