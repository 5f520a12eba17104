//! The life of one guest, as a state machine without side effects.
//!
//! ```text
//!  operator's commands ──▶ ┌──────┐
//!                          │ Life │ ──▶ Actions, in order ──▶ kernel/src/guests carries them out
//!  observations, clock ──▶ └──────┘                                  │
//!           ▲                                                        │
//!           └──────────────── brought up, vCPUs home, detached ◀─────┘
//! ```
//!
//! [`Life`] decides when a guest starts, stops, is killed and starts again. The kernel takes its [`Action`]s one by
//! one, carries them out and reports back what it observes. An observation may come at once or many ticks later.
//!
//! This is a separate crate, and not a module of `control`. `control` is about COM1 and COM2, and the build tool and
//! the scenarios link it to read COM2. They do not need this crate.
//!
//! Time is a number of milliseconds that never decreases. Where it starts does not matter.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod action;
mod apply;
mod asks;
mod backoff;
mod devices;
mod life;
mod rollout;
mod wait;

pub use action::{Action, End, Refused, Report, explain_pending};
pub use apply::{Apply, Guests};
pub use asks::Asks;
pub use devices::{Devices, Outcome, Step};
pub use life::Life;
pub use rollout::{Deed, Order, Rollout, Seen};
