//! A small model of Intel's 82576 and I350, written from their data sheets and independent of the driver: registers, reset and
//! EEPROM with their timing, the PHY, one queue each way with advanced descriptors, the receive filter, counters. It reports
//! what a driver must not do.
//!
//! It has no segmentation, RSS, virtual functions, SerDes or interrupts. QEMU's own model of the 82576 judges segmentation
//! (`cargo mk e2e uplink-igb`).

mod frames;
mod kind;
mod offsets;
mod phy;
mod registers;
mod state;

pub use kind::{Diagnostic, Kind};
pub use state::{Faults, Model};
/// Frames that tests make, and memory for DMA, of which the device reaches only granted parts.
pub use x520_model::{made, memory};
