//! End-to-end scenarios, and the guests they boot.
//!
//! A scenario boots sidecore in an emulator, waits for what must happen, reads its numbers from COM2 as JSON lines and
//! fails below the minimum it states. `mk` provides the emulators ([`machine::Launch`]) and runs the list [`all`];
//! nothing here knows how an emulator is started.

pub mod cases;
pub mod costs;
pub mod cpio;
pub mod figures;
pub mod guests;
pub mod initramfs;
pub mod linux;
pub mod machine;
pub mod modes;
pub mod nic;
pub mod probes;
pub mod scenario;
pub mod session;
pub mod steady;
pub mod vhost;

pub use machine::Platform;
pub use scenario::{Context, Scenario, all};
