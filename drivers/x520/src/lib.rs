//! Polled driver for Intel's 82599 (X520) network controller, by its data sheet (Intel document 331520).
//!
//! The owner calls `Nic::service` about once a millisecond. `service` brings the device up, watches the link, reads the
//! statistics before they saturate, and resets a hung device. In between, the owner polls through the [`nic::Nic`]
//! trait: receive, transmit, flush, reclaim. Nothing here blocks: an operation that takes time is a state that
//! `service` looks at again. The data path reads no register and writes one tail per batch.
//!
//! **Memory.** Without an IOMMU the device reaches all memory. So only a [`dma::DmaBuffer`] can become a ring or a
//! receive buffer, and making one is `unsafe`. The driver lends received frames to the caller, who copies them once.
//! The device reads frames to send where they lie. A token names the frame's owner. Each token comes back exactly once:
//! when the device has sent the frame, or after a reset has stopped all DMA.
//!
//! Interrupts stay masked. Not covered: virtual functions, DCB, flow director, RSC, FCoE, IPsec, LinkSec, wake-up.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod bits;
mod bring_up;
mod cage;
mod config;
mod device;
mod eeprom;
mod filter;
mod filter_tables;
mod i2c;
pub mod id;
mod interface;
mod link;
pub mod module;
mod pools;
pub mod registers;
mod rss;
mod semaphore;
mod service;
mod statistics;

pub use intel_nic::{dma, nic};

pub use config::{Config, ConfigError, Steering};
pub use device::X520;
pub use filter::{Filter, MAX_ADDRESSES};
pub use intel_nic::filter::MAX_GROUPS;
pub use intel_nic::guarded::{BusMaster, Device};
pub use intel_nic::state::{Failure, Status};
pub use interface::Guarded;
pub use link::Cage;
