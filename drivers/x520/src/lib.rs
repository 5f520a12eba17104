//! Polled driver for Intel's 82599 (X520) network controller, by its data sheet (Intel document 331520).
//!
//! Whoever owns the device calls `Nic::service` now and then (each millisecond is a good beat), which brings it up,
//! watches the link, reads the statistics before they stick and gets a hung device going again; and between that
//! polls through the [`nic::Nic`] trait: receive, transmit, flush, reclaim. Nothing here blocks: what takes time is a
//! state that `service` looks at again. The data path reads no register; it writes one tail per batch.
//!
//! **Memory.** Without an IOMMU the device reaches all memory, so nothing but a [`dma::DmaBuffer`] can become a ring or a
//! receive buffer, and making one is `unsafe`. Received frames are lent to the caller, who copies them once. Frames to
//! send are read where they lie; their owner is named by a token, which comes back once and only once: when the device
//! has sent the frame, or after a reset has stopped all DMA.
//!
//! Interrupts stay masked. Not covered: virtual functions, DCB, flow director, RSC, FCoE, IPsec, LinkSec, wake-up.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod bits;
mod bring_up;
mod config;
mod descriptor;
mod device;
pub mod dma;
mod filter;
mod filter_tables;
mod guarded;
pub mod id;
mod interface;
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
pub use state::{Failure, Status};
