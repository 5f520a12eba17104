//! Polled driver for Intel's 82576 and I350 network controllers, by the data sheet of the 82576EB and,
//! where they differ, that of the I350.
//!
//! The owner calls `Nic::service` about once a millisecond. `service` brings the device up, has the PHY negotiate, reads the
//! statistics, and resets a hung device. In between, the owner polls through the [`nic::Nic`] trait. The data path is that of
//! all of Intel's NICs with advanced descriptors, in `intel-nic`; memory and tokens are described there and in `x520`.
//!
//! One queue each way. Interrupts stay masked. Not covered: SerDes and SGMII, several queues, virtual functions, time stamps,
//! wake-up, Energy-Efficient Ethernet (as the EEPROM has it).

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod bits;
mod bring_up;
mod config;
mod device;
mod filter_tables;
pub mod id;
mod interface;
mod phy;
pub mod registers;
mod service;
mod statistics;

pub use intel_nic::filter::{Filter, MAX_GROUPS};
pub use intel_nic::guarded::{BusMaster, Device};
pub use intel_nic::state::{Failure, Status};
pub use intel_nic::{dma, nic};

pub use config::{Config, ConfigError, MAX_FRAME};
pub use device::Igb;
pub use id::Kind;
pub use interface::Guarded;
pub use phy::Phy;
