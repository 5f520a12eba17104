//! Helpers for the tests and benches of this crate and of others.

mod absent;
mod recorder;

pub use absent::Absent;
pub use recorder::Recorder;
