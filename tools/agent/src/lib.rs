//! The programs of the management guest.
//!
//! ```text
//!  ssh ──▶ shell, run ──┐
//!  console ──▶ pipe ────┼──▶ unix socket ──▶ serve ──▶ org.sidecore.control ──▶ hypervisor
//!  Prometheus ──▶ metrics ┤   (JSON lines)   (broker)   (JSON lines)
//!  syslogd ◀── syslog ────┘
//!
//!  ssh ◀── trace save ◀──┬── org.sidecore.trace ◀── hypervisor     (blocks of the crate `trace`)
//!  ssh ◀── capture ◀─────┘   (pcap-ng)
//! ```
//!
//! One process, [`broker`], owns the control port of the console device. All others talk to it by a unix socket. Each line is a command
//! or an event of the crate `control`, as on COM2. The guest has no other way to the hypervisor. What it may ask is limited
//! there; what the owner of a key may ask is limited here, in [`key`]. Who that is goes with each command, for the hypervisor's audit.

pub mod attach;
pub mod broker;
pub mod client;
pub mod exposition;
pub mod http;
pub mod input;
pub mod key;
pub mod keys;
pub mod lines;
pub mod metrics;
pub mod pipe;
pub mod prompt;
pub mod put;
pub mod shell;
pub mod syslog;
pub mod terminal;
pub mod top;
pub mod trace;
pub mod words;
