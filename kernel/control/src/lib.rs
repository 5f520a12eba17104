//! The interfaces of sidecore for people and for scripts: the shell on COM1 and the JSON lines of COM2.
//!
//! ```text
//!  COM1 bytes ──▶ shell::Shell ──▶ Command ◀── line::LineReader + Request::from_line ◀── COM2 bytes
//!  COM1 text  ◀── table::*     ◀── Counters ──▶ Event::to_line ──▶ COM2 lines
//! ```
//!
//! On a machine where both share a port, [`SharedOutput`] and [`SharedInput`] keep them apart.
//!
//! Both sides use the same [`Command`]. The tables on COM1 and the lines on COM2 show the same [`Counters`]. Nothing
//! here touches hardware: this crate takes bytes and returns bytes. The build tool and the scenarios use the same types
//! to read COM2. JSON is as in RFC 8259. Every number is an exact unsigned 64-bit integer.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod argument;
mod audit;
pub mod capture;
mod channel;
mod command;
mod complete;
mod counters;
mod editor;
pub mod eoi;
mod event;
mod fold;
mod guest_state;
mod input;
mod json;
pub mod latency;
mod line;
mod mac;
mod modules;
mod name;
mod nearest;
mod no_memory;
mod notice;
mod output;
mod panic;
mod permissions;
mod prompt;
mod recent;
mod request;
#[cfg(test)]
mod screen_of;
mod sender;
mod setting;
mod sha256;
mod shared_line;
mod shell;
mod shown;
mod store;
mod summary;
pub mod table;
mod terminal;
mod top;
pub mod trace;
mod turns;
mod unknown;
mod utilisation;
mod view;

use alloc::borrow::Cow;

pub use self::capture::CapturedPort;
pub use self::latency::{Durations, Latency, OCCUPANCY};
pub use self::trace::{TraceState, TraceStep, TracedCore};
pub use audit::{Audit, Note, Outcome, Record, show_records};
pub use channel::{ANSWER, Channel, ChannelCounts, EVENTS, READ_BYTES, TICK_INSTRUCTIONS};
pub use command::{Command, help};
pub use complete::complete;
pub use counters::{
    Block, Console, ConsolePort, Count, Counters, Engine, Entropy, ExitCount, Guest, Heap, Hypervisor, MachineChecks,
    Port, SerialPort, StageCounters, Uplink, VcpuCounters, Watched,
};
pub use editor::{Editor, Typed};
pub use event::{
    ApplyState, Event, GuestSummary, Level, ModuleSummary, PhysicalRange, Platform, ReportEntry, ReportKind,
    Virtualization,
};
pub use fold::COLUMNS;
pub use guest_state::{GuestState, StopReason};
pub use input::{COMMANDS, INPUT_BYTES, take_input};
pub use line::{LineError, LineReader, MAX_LINE, lossy};
pub use mac::Mac;
pub use modules::show_modules;
pub use name::is_name;
pub use nearest::{MAX_WORD, nearest};
pub use no_memory::{NoMemory, OUT_OF_MEMORY, collect, copy, push, sentence, write};
pub use notice::Notice;
pub use output::{Class, Loss, Output, RECORD};
pub use panic::write_panic;
pub use permissions::{Caller, Permissions, Way};
pub use prompt::Prompt;
pub use recent::Recent;
pub use request::{Refused, Request};
pub use sender::{MAX_ADDRESS, MAX_WHO, Sender};
pub use setting::SettingKey;
pub use sha256::Sha256;
pub use shared_line::{Received, SharedInput, SharedOutput, Whose, record, without_mark};
pub use shell::{Action, LEAVE_KEY, PROMPT, Shell};
pub use shown::Joined;
pub use store::{MAX_PUT_MODULES, Store};
pub use summary::{QUOTED, write_summary};
pub use terminal::TerminalFilter;
pub use top::{AfterKey, LEAVE_TOP, Top};
pub use turns::{Pause, Turns};
pub use utilisation::Utilisation;
pub use view::View;

/// Why `apply` does not read a file now. The management guest's agent waits and asks again.
pub const READ_TOO_SOON: &str = "a file was read just before: ten a second are read at most";

/// A text. It is a constant in the hypervisor. A program that reads it from a line owns it.
pub type Text = Cow<'static, str>;
