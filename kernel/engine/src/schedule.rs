//! Decides which queue is visited next, and for how long. Nothing else decides that.
//!
//! [`Fine`] is for an engine with several guests. [`PerDevice`] is the baseline of ELVIS (3.1, 4.6).

mod chosen;
mod fine;
mod per_device;
mod visit;

pub use chosen::Chosen;
pub use fine::{Fine, Limits};
pub use per_device::PerDevice;
pub use visit::{GuestWeight, INSTRUCTION_BYTES, MAX_WEIGHT, Portion, QUEUES, QueueId, Schedule, Served, Visit};
