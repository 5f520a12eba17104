//! The block back-end: disks for guests (virtio 1.3 5.2).
//!
//! ```text
//!   requestq ──▶ backend::Block ── header::Header ──▶ check::check ──▶ storage::Storage::submit
//!                    │    ▲                                               │ Done: completed at once
//!                    │    └────── in_flight::InFlight ◀───────────────────┤ Pending: completed by Storage::poll
//!                    ▼                                                    │ Busy: the request goes back to the queue
//!                status byte, used length                                 ▼
//!                                                        ram::Ram, nvme::Nvme, virtio_disk::VirtioDisks
//! ```
//!
//! [`storage`] is the trait of what lies beneath. [`ram`] implements it for RAM disks, [`nvme`] for NVMe namespaces. [`device`] is the configuration
//! that the driver reads.
//!
//! Nothing here locks or waits. Memory is allocated when the back-end is made and never afterwards.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

pub mod backend;
mod check;
pub mod counters;
pub mod device;
pub mod emulate;
mod ended;
pub mod failures;
mod fast;
pub mod flushes;
mod header;
mod in_flight;
pub mod nvme;
mod outcome;
pub mod pair;
pub mod part;
pub mod ram;
pub mod storage;
#[cfg(feature = "testing")]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a load for measurements")]
pub mod testing;
pub mod virtio_disk;
pub mod watch;

#[cfg(test)]
mod tests;
