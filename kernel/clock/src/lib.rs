//! The machine's time.
//!
//! - [`rate`]: how fast a counter counts, measured against a clock whose rate is known. Firmware in system management mode, or
//!   a hypervisor beneath, may take the core away at any moment of it.
//! - [`agree`]: whether the TSCs of two cores agree, and by how much one must be put right.
//!
//! This crate reads no clock. `kernel/src/arch/timer.rs` and `kernel/src/cores.rs` do that.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod agree;
pub mod rate;
