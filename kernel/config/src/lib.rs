//! `sidecore.toml`: what the operator wrote becomes a [`Config`], and every mistake in it a [`Mistake`] with file,
//! line, value and what was expected.
//!
//! ```text
//!  bytes ──parse──▶ Config ──check_modules──▶ ──check_memory──▶ ──plan──▶ Plan (which core does what)
//!             │                  │                   │             │
//!             └──────────────────┴───────── Mistake ─┴─────────────┘
//! ```
//!
//! [`NicChoice`] chooses the NICs of the `[[port]]`s, when they are opened.
//!
//! A guest with a mistake is left out and the others remain; a mistake outside the guests leaves the default in its
//! place; a file that is not TOML gives no guest at all. Nothing here panics, whatever the file holds. Follows TOML
//! 1.1; the keys are listed in this folder's README.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod check;
mod completion;
mod default;
mod guest;
mod mac;
mod mistake;
mod nic_choice;
mod nic_needs;
mod plan;
mod port;
mod read;
mod rules;
mod section;
mod size;
pub mod stage;

use alloc::string::String;
use alloc::vec::Vec;

pub use check::{check_completion, check_memory, check_modules};
pub use completion::best as best_completion;
pub use control::Level;
pub use default::default_config;
pub use mac::Mac;
pub use mistake::{Mistake, Place};
pub use nic_choice::{FoundFunction, NicChoice, NicSearch};
pub use nic_needs::{MAX_RECEIVE_QUEUES, NicNeeds, ReceiveQueues};
pub use plan::{Plan, plan};
pub use port::{PciDevice, Port, Steering};
pub use read::{ParsedRules, parse, parse_rules};
pub use rules::{Identity, MAX_ADDRESSES, MAX_STAGES, MAX_STATIC, Rules, Vlan};
pub use stage::Stage;

/// vCPUs of a guest, at most.
pub const MAX_VCPUS: u32 = 8;
/// Guests, at most.
pub const MAX_GUESTS: usize = 32;
/// Network devices of a guest, at most.
pub const MAX_NETS: usize = 8;
/// Pairs of queues of a network device.
pub const MAX_PAIRS: u32 = 4;
/// Least memory of a guest in bytes.
pub const MIN_MEMORY: u64 = 64 << 20;
/// Most memory of a guest in bytes.
pub const MAX_MEMORY: u64 = 1 << 40;
/// Guest memory is mapped in pages of this many bytes and comes in multiples of it.
pub const MEMORY_UNIT: u64 = 2 << 20;
/// Greatest weight of a guest.
pub const MAX_WEIGHT: u16 = 16;
/// Longest command line of a guest's kernel in bytes: x86 Linux's `COMMAND_LINE_SIZE` without the final zero.
pub const MAX_CMDLINE: usize = 2047;
/// Engines, at most. One for now; the plan and the types allow for more.
pub const MAX_ENGINES: usize = 1;
/// Largest payload of a network device's frames in bytes: the least that can be chosen,
pub const MIN_MTU: u16 = 576;
/// the most,
pub const MAX_MTU: u16 = 9216;
/// and what it is if nothing is.
pub const DEFAULT_MTU: u16 = 1500;
/// Uplinks, at most.
pub const MAX_UPLINKS: usize = 4;

/// What a file gave: the part that can be used, and what was wrong with the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// What can be used.
    pub config: Config,
    /// What was wrong, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Name of the file that it comes from, for mistakes found later; empty for the default.
    pub file: String,
    /// `[log] level`.
    pub log: Level,
    /// `[control]`.
    pub control: Control,
    /// `[[engine]]`; empty means one engine on a core of sidecore's choice.
    pub engines: Vec<Engine>,
    /// `[[port]]`; empty means that guests reach each other and nobody else.
    pub ports: Vec<Port>,
    /// `[[stage]]` in the order of the file.
    pub stages: Vec<Stage>,
    /// `[[guest]]` in the order of the file.
    pub guests: Vec<Guest>,
}

/// `[control]`: the control core's duties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Powers the machine off when every guest has stopped and none will be restarted.
    pub end_when_guests_stop: bool,
    /// Seconds between the power button and the kill of `stop`.
    pub stop_seconds: u32,
}

impl Default for Control {
    fn default() -> Self {
        Self { end_when_guests_stop: false, stop_seconds: 30 }
    }
}

/// `[[engine]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Its core; none: sidecore chooses. 0 is the control core, which then is an engine as well.
    pub core: Option<u32>,
    /// In which order it works.
    pub scheduling: Scheduling,
    /// Where the file says so.
    pub place: Place,
}

/// In which order an engine works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// Queue by queue: time shared by weight, and who waits for a reply is served early.
    #[default]
    Fine,
    /// Device by device, a fixed number of requests each.
    PerDevice,
}

/// `[[guest]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// 1 to 32 letters, digits, `-`, `_` and `.`; no two alike.
    pub name: String,
    /// vCPUs, 1 to [`MAX_VCPUS`], each on a core of its own.
    pub vcpus: u32,
    /// RAM in bytes.
    pub memory: u64,
    /// Name of the boot module with the kernel (bzImage).
    pub kernel: String,
    /// Name of the boot module with the initial RAM disk.
    pub initrd: Option<String>,
    /// The kernel's command line.
    pub cmdline: String,
    /// How I/O is completed.
    pub completion: Completion,
    /// How the engine learns of its requests.
    pub requests: Requests,
    /// How much of the engine it may have when all guests want some, against the others: 1 to [`MAX_WEIGHT`].
    pub weight: u16,
    /// What happens when the guest resets, powers off or faults.
    pub restart: Restart,
    /// Whether it starts with sidecore.
    pub autostart: bool,
    /// Cores of the vCPUs in their order, as many as `vcpus`; none: sidecore chooses.
    pub cores: Option<Vec<u32>>,
    /// `[[guest.net]]`.
    pub nets: Vec<Net>,
    /// Where in the file the values stand that are checked against the machine.
    pub places: Places,
}

/// `[[guest.net]]`: a virtio-net device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// MAC address.
    pub mac: Mac,
    /// The only uplink that its frames leave and come by: its number in [`Config::ports`]. None: in each VLAN, the first one
    /// that is in that VLAN.
    pub port: Option<usize>,
    /// Largest payload of a frame in bytes, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: u16,
    /// Queue pairs, 1 to [`MAX_PAIRS`].
    pub queues: u16,
    /// What the guest may leave to others.
    pub offloads: Offloads,
    /// Packed rings are offered.
    pub packed: bool,
    /// Who it is.
    pub identity: Identity,
    /// What its frames may do.
    pub rules: Rules,
}

/// What of its frames a guest may leave to the engine or the NIC, and takes undone itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offloads {
    /// Checksums, and the cutting of TCP into segments.
    #[default]
    Segmentation,
    /// Checksums.
    Checksum,
    /// Nothing.
    None,
}

/// How I/O of a guest is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// The best way that is there; [`check_completion`] puts it in this one's place.
    #[default]
    Auto,
    /// The core is kicked and the interrupt injected at the next entry.
    Inject,
    /// The CPU delivers it to the running guest (VT-x with posted interrupts).
    Posted,
    /// The guest owns its cores' local APICs, and the interrupt is sent to the core itself.
    Direct,
    /// As `Direct`, with a shadow of its IDT that brings the host's own vectors to the host.
    Eli,
}

/// How the engine learns of a guest's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requests {
    /// It looks at each queue all the time; no request costs an exit.
    #[default]
    Poll,
    /// The guest notifies it, which costs an exit; queues without traffic cost the engine nothing.
    Notify,
    /// A queue is polled while it is busy and notified otherwise.
    Adaptive,
}

/// What happens when a guest has stopped by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// It stays stopped.
    #[default]
    Never,
    /// It is started anew, with nothing of its former life left.
    Always,
}

/// Where the values of a guest stand that can only be checked against the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// `name`, or the head of the table.
    pub name: Place,
    /// `kernel`.
    pub kernel: Place,
    /// `initrd`.
    pub initrd: Place,
    /// `memory`.
    pub memory: Place,
    /// `cores`, otherwise `vcpus`, otherwise `name`.
    pub cores: Place,
    /// `completion`, or the head of the table.
    pub completion: Place,
}
