//! Machine checks (SDM vol. 3B, chapter "Machine-Check Architecture"; AMD APM vol. 2, chapter "Machine Check
//! Architecture"): what a bank of registers says, how bad it is, whose memory it is, and what follows.
//!
//! ```text
//!  a core's banks ──▶ Status, Location ──▶ severity ─┐
//!  a core's MCG_STATUS, where it was ────────────────┼──▶ judge ──▶ count, withhold a page, end a guest, or stop
//!  whose memory an address is ───────────────────────┘
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `registers` | MCG_CAP, MCG_STATUS, the status of a bank |
//! | `setup` | what a CPU has: its banks, to whom a machine check goes; which registers switch it on, in which order |
//! | `model` | what a CPU says about its errors, and where the address of one is |
//! | `severity` | how bad an error is |
//! | `judge` | what follows from the errors of all cores |
//! | `meeting` | the cores that a broadcast machine check stops: they meet, and one of them judges |
//!
//! Nothing here reads a register or allocates. A machine check may interrupt any code.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod judge;
mod meeting;
mod model;
mod registers;
mod setup;
mod severity;

pub use judge::{Action, Arrival, Error, Fate, Judgement, MAX_ERRORS, Owner, Place, Reason, judge, when_polled};
pub use meeting::{Joined, Judging, Meeting, Waiting};
pub use model::{Format, Location, Model};
pub use registers::{GlobalCapabilities, GlobalStatus, Status};
pub use setup::{Broadcast, MAX_BANKS, MCG_STATUS, Register, Setup, Write, at};
pub use severity::{Severity, severity};
