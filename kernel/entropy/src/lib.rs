//! The entropy back-end: fills the buffers of guests' requests with random bytes (virtio 1.3 5.4).
//!
//! ```text
//!   requestq ──▶ backend::Entropy ──▶ Source::fill ──▶ up to 64 bytes into guest memory, completed at once
//!                    ▲    │ the source has none, or the guest's rate is used up
//!                    └────┴─ kept, tried again each turn
//! ```
//!
//! A request takes a bounded time of the engine: it gets at most [`MAX_BYTES`](backend::MAX_BYTES). The bytes come from
//! a [`Source`](source::Source). [`cpu::Cpu`] is one. [`limit`] bounds the rate of each guest.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

pub mod backend;
pub mod counters;
pub mod cpu;
pub mod device;
pub mod generator;
pub mod limit;
pub mod source;

#[cfg(test)]
mod tests;
