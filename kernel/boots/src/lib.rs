//! What one boot leaves for the next one.
//!
//! - [`record`]: how often a configuration was tried without coming to run, and how the boot ended; a record of 64 bytes.
//! - [`attempts`]: which configuration to take.
//! - [`settling`]: when a boot has come to run.
//! - [`area`]: records and log in memory that nobody clears between two boots.
//! - [`cper`]: a record of the firmware's store (ERST), in the format that Linux's pstore uses too.
//! - [`cmos`]: the count in one byte.
//! - [`clean`]: text of an earlier boot, or of somebody else, for a terminal.
//!
//! Everything that is read here may be damaged, or anybody's: memory keeps its contents through a reset, or not, and other
//! systems write to the firmware's store. `kernel/src/boots.rs` has the places.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod area;
pub mod attempts;
pub mod clean;
pub mod cmos;
pub mod cper;
pub mod record;
pub mod settling;
