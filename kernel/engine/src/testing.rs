//! Helpers for the tests and benches of this crate and of others.

mod absent;
mod first_look;
mod recorder;

pub use absent::Absent;
pub use first_look::looks_in_a_turn;
pub use recorder::Recorder;
