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
mod descriptor;
mod device;
pub mod dma;
mod eeprom;
mod filter;
mod filter_tables;
mod guarded;
mod i2c;
pub mod id;
mod interface;
mod lights;
mod link;
pub mod module;
mod offload;
mod pools;
mod receive;
pub mod registers;
mod rss;
mod semaphore;
mod service;
mod state;
mod statistics;
mod tokens;
mod transmit;

pub use nic;

pub use config::{Config, ConfigError, Steering};
pub use device::X520;
pub use filter::{Filter, MAX_ADDRESSES, MAX_GROUPS};
pub use guarded::{BusMaster, Guarded};
pub use link::Cage;
pub use state::{Failure, Status};
