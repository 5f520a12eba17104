//! A model of an NVMe controller, to test drivers on.
//!
//! It is written from the specifications (NVMe Base 2.0, NVM Command Set 1.0, PCIe Transport 1.0), not from a driver. A
//! test sees registers ([`Model::read`], [`Model::write`]), a memory of which the device reaches only granted parts
//! ([`memory::Memory`]), and the namespaces' contents. Nothing happens by itself: [`Model::advance`] lets time pass,
//! [`Model::run`] lets the device work.
//!
//! The model reports a driver's mistake as a diagnostic, not by a panic. A correct driver causes none. [`Faults`] makes
//! the device fail.

mod admin;
#[cfg(feature = "driver")]
pub mod driver;
mod faults;
mod io;
mod model;
mod prp;
mod registers;

pub use faults::Faults;
pub use model::{Config, Executed, Model, Namespace};
pub use x520_model::memory;
