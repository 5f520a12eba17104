//! Records traces of a sidecore machine, reports on them, and exports them for other programs.
//!
//! ```text
//!   COM2 ── record ──▶ FILE ── read ──▶ model::Trace ─┬─ report ──▶ text, JSON
//!                              names, losses          └─ export ──▶ Perfetto, folded stacks, SVG, JSON
//! ```
//!
//! The format of FILE is that of the crate `trace`, as the machine wrote it. The machine may be hostile: whatever the file
//! has in it, reading ends, allocates in proportion to the file, and never panics.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub use sidecore_pcapng::clock;

pub mod bzimage;
pub mod export;
pub mod kallsyms;
pub mod model;
pub mod read;
pub mod record;
pub mod report;
pub mod resolve;
pub mod statistics;
pub mod symbols;
