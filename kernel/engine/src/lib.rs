//! The I/O engine: the program of an I/O core. It has no hardware access and does not know what the bytes of a request
//! mean.
//!
//! ```text
//!   guest cores                                I/O core                           control core
//!   ───────────                                ────────                           ────────────
//!   transport ── virtio::shared::Shared ──▶ engine::Engine ◀── control::Control ── attach, detach
//!   (virtio-pci)  activate, reset, kick        │  schedule: which queue next
//!                                              │  backend: what the bytes mean (net, entropy, ...)
//!   rings in      ── virtio::queue::Queue ──▶  │
//!   guest memory                               ▼
//!                                       deliver::Deliver: interrupts, which the kernel delivers
//! ```
//!
//! [`engine`] is the loop. [`devices`] are the virtual devices that it serves, each in a slot. A guest that breaks a
//! rule loses its device; nobody else is affected. The engine polls a queue, or waits for the device's kick in its
//! [`doorbell`]; [`requests`] decides. [`schedule`] chooses the next queue to visit. A [`backend`] gives requests their
//! meaning; a [`pair`] combines two. [`order`] has requests completed in the order in which they were taken. [`observe`]
//! defines where the loop can be observed, and [`follow`] measures how long the requests of queues take. [`maps`] are told whose memory is needed. Other cores read [`counters`] at any time.
//!
//! Nothing here locks or waits. Memory is allocated when an engine is created and, for a device that keeps the order,
//! when it is activated. It is never allocated afterwards. Nothing that a guest writes can make it panic.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod atomics;
pub mod backend;
mod bits;
mod channel;
#[cfg(all(test, not(miri)))]
mod channel_model;
pub mod clock;
pub mod control;
pub mod counters;
pub mod deliver;
pub mod device;
pub mod devices;
pub mod doorbell;
pub mod engine;
pub mod follow;
pub mod maps;
pub mod observe;
mod offered;
pub mod order;
pub mod pair;
pub mod profile;
pub mod requests;
pub mod schedule;
pub mod slots;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]
pub mod testing;
#[cfg(test)]
mod tests;
