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
//! While a trace is sent, [`traced`] counts where guests' exits come from. Its format and symbols are those of `sidecore-trace`.
//!
//! What comes from the machine is hostile: a line is bounded, whatever is kept is bounded, and every text passes [`clean`] before it
//! is shown: texts of events before they are kept, names in counters when a view makes its sheet. Only `app` and `link` touch a terminal, a clock or a connection; the rest takes values and returns values.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod app;
pub mod capture;
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
pub mod target;
pub mod traced;
pub mod ui;
pub mod views;
