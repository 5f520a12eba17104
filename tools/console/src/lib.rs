//! The operator's view of a running sidecore, from another machine: `sidecore-console`.
//!
//! ```text
//!  socket, TCP, serial line, ssh, recording
//!       │ bytes (link)
//!       ▼
//!  lines::Lines ─▶ control::Event ─▶ state::State ─▶ views: sheet::Sheet ─┬─▶ screen (ratatui)
//!                                        ▲                               ├─▶ sheet::text
//!                          keys ─▶ ui::Ui┘                               └─▶ sheet::json
//! ```
//!
//! What comes from the machine is hostile: a line is bounded, whatever is kept is bounded, and every text passes [`clean`] before it
//! is kept. Only `app` and `link` touch a terminal, a clock or a connection; the rest takes values and returns values.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod app;
pub mod clean;
pub mod lines;
pub mod link;
pub mod once;
pub mod options;
pub mod rates;
pub mod record;
pub mod screen;
pub mod sheet;
pub mod state;
pub mod ui;
pub mod views;

/// Exit codes of the program.
pub mod exit {
    /// It ended as asked.
    pub const GOOD: u8 = 0;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// There was no connection, no answer, no file, or no terminal.
    pub const NO_ANSWER: u8 = 3;
}
