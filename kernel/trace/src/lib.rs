//! The trace of a running machine: what each core writes about its work, and how it is saved.
//!
//! ```text
//!   a core                       control core                          tools
//!   ──────                       ────────────                          ─────
//!   Record ──▶ ring::Ring ──▶ ring::Cursor ──▶ stream (chunks) ──▶ stream::blocks ──▶ Record
//!              one writer        one reader       COM2, a file
//! ```
//!
//! - [`record`]: an event of 32 bytes, and the kinds of events.
//! - [`capture`]: a captured frame, and the filters of the ports.
//! - [`class`]: groups of kinds that are switched on and off together.
//! - [`frames`]: the records of a batch of frames.
//! - [`ring`]: the ring of one core. Its writer never waits. Losses are counted.
//! - [`saving`]: sends header and rings, as fast as COM2 or a port takes them.
//! - [`stream`]: the format of a saved trace, and its reader. The reader accepts any bytes.
//! - [`histogram`]: distributions of durations in fixed memory.
//! - [`queues`]: the distributions of a queue.
//! - [`sampling`]: a record for one of so many exits.
//! - [`published`]: a few words that one core writes and another one reads.
//!
//! The tools of the operator import this crate too. Nothing here allocates, waits or panics, whatever the bytes are.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod atomics;
pub mod capture;
pub mod class;
pub mod frames;
pub mod histogram;
pub mod published;
#[cfg(all(test, not(miri)))]
mod published_model;
pub mod queues;
pub mod record;
pub mod ring;
#[cfg(all(test, not(miri)))]
mod ring_model;
#[cfg(test)]
mod ring_tests;
pub mod sampling;
pub mod saving;
pub mod stream;

pub use capture::Captured;
pub use class::{Classes, Switch, Watch};
pub use record::{Kind, Record};
