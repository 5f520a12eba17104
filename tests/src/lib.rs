//! End-to-end scenarios, and the guests they boot.
//!
//! A scenario runs against sidecore in an emulator. It waits for events, reads numbers from COM2 (JSON lines), and
//! fails if a number misses its bound. A boot is one machine and the scenarios that it serves. `mk` provides the
//! emulators ([`launch::Launch`]) and runs the boots of [`cases::all`]. Nothing here knows how an emulator is started.

pub mod boot;
pub mod boot_server;
pub mod cases;
pub mod costs;
pub mod counts;
pub mod cpio;
pub mod disk;
pub mod figures;
pub mod guests;
pub mod initramfs;
pub mod launch;
pub mod linux;
pub mod machine;
pub mod modes;
pub mod nic;
pub mod platform;
pub mod probes;
pub mod programs;
pub mod scenario;
pub mod session;
pub mod setup;
pub mod steady;
pub mod tcp;
mod terminal;
pub mod vhost;
pub mod write_log;
