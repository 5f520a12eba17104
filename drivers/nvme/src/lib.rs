//! Polled driver for NVMe controllers (NVMe Base 2.0, NVM Command Set 1.0, NVMe over PCIe Transport 1.0).
//!
//! ```text
//!   control core                      engine 1                    engine 2
//!   Controller::service               IoQueue: submit, notify,    IoQueue
//!     │ admin queues, registers         │ poll                      │
//!     └────────── gate, table ──────────┴───────────────────────────┘   atomics, no locks
//! ```
//!
//! Nothing here blocks: an operation that takes time is a state that [`Controller::service`] looks at again. The I/O
//! path ([`IoQueue`]) reads no register, allocates nothing, and writes one doorbell for a batch of requests and one for
//! a batch of completions.
//!
//! **Memory.** The device reads and writes the data of requests where it lies ([`dma::Segment`]). Only what PRP entries
//! cannot say goes through bounce pages. All other memory of the device is [`dma::DmaBuffer`]s that are taken at the
//! start. A request is answered exactly once, and only when the device does not use its segments any more: it has
//! completed the request, was reset, or has lost its bus mastering.
//!
//! **The device is not trusted.** What it writes is read once and checked. The driver's own copies of indices and
//! commands are the truth. A completion that cannot be true costs the controller a reset, and too many resets give it up.
//!
//! Interrupts stay masked. Not covered: metadata and end-to-end protection, SGLs, namespaces of other command sets,
//! controller memory buffers, shadow doorbells, multipath, power states.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod admin;
mod bounce;
mod command;
mod config;
mod controller;
pub mod dma;
mod gate;
mod health;
mod identify;
mod poll;
mod prp;
mod queue;
pub mod registers;
mod request;
mod ring;
mod service;
mod state;
mod steps;
mod submit;
mod table;

pub use command::Code;
pub use config::{Config, ConfigError};
pub use controller::{BusMaster, Controller, Namespace};
pub use gate::Trouble;
pub use health::{ErrorEntry, Health, Warnings};
pub use identify::{BadNamespace, Format, Identity, UniqueId, Unusable};
pub use queue::IoQueue;
pub use request::{Limits, Operation, Refused, Request, Status};
pub use state::{ControllerStatus, Event, Failure, Reason};
pub use table::MAX_NAMESPACES;
