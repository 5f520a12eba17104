//! Reads `sidecore.toml` into a [`Config`]. Every mistake becomes a [`Mistake`] with file, line, value and what was
//! expected.
//!
//! ```text
//!  bytes ──parse──▶ Config ──check_modules──▶ ──check_memory──▶ ──plan──▶ Plan (which core does what)
//!             │                  │                   │             │
//!             └──────────────────┴───────── Mistake ─┴─────────────┘
//! ```
//!
//! [`NicChoice`] chooses the NICs of the `[[port]]`s, when they are opened.
//!
//! A guest with a mistake is left out, and the others remain. A value with a mistake outside the guests is replaced by
//! the default. A file that is not TOML gives no guest. No file can make this code panic. Follows TOML 1.1. This
//! folder's README lists the keys.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod check;
mod completion;
mod config;
mod default;
mod difference;
mod disk;
mod disk_check;
mod disk_name;
mod extent;
mod guest;
mod limits;
mod mac;
mod management;
mod mistake;
mod module;
mod module_check;
mod nic_choice;
mod nic_needs;
mod open_ports;
mod packed;
mod plan;
mod reach;
mod read;
mod rules;
mod section;
mod setting;
mod share;
mod show;
mod size;
pub mod stage;
mod topology;
mod trace;
mod uplink;
mod written;

pub use self::trace::{MAX_TRACE, Trace};
pub use check::{check_completion, check_memory, check_modules};
pub use completion::best as best_completion;
pub use config::{Config, Control, Engine, Scheduling, Smt};
pub use control::Level;
pub use default::default_config;
pub use difference::{Change, ChangeKind, Machine, after, difference, needs_restart, way_back};
pub use disk::{Block, Cache, Disk, Partition, Unpacked};
pub use disk_check::check_disks;
pub use disk_name::{ControllerKind, ControllerName, DiskName, FoundController, FoundNamespace, disk_line};
pub use extent::Extent;
pub use gpt::Guid;
pub use guest::{
    Completion, Console, Entropy, Guest, GuestDevice, Net, NotifyBar, Offloads, Places, Requests, Restart, SplitLock,
};
pub use limits::{
    DEFAULT_MTU, DEFAULT_OVERLAY, MAX_ADDRESSES, MAX_APPLIED, MAX_BLOCK_QUEUES, MAX_BLOCKS, MAX_CMDLINE,
    MAX_CONSOLE_PORTS, MAX_CONSOLES, MAX_DEVICES, MAX_ENGINES, MAX_ENTROPIES, MAX_FILE, MAX_GATEWAY, MAX_GUESTS,
    MAX_MEMORY, MAX_MTU, MAX_NETS, MAX_PAIRS, MAX_PUT, MAX_SERIAL, MAX_STAGES, MAX_STATIC, MAX_UPLINKS, MAX_VCPUS,
    MAX_WEIGHT, MEMORY_UNIT, MIN_MEMORY, MIN_MTU, apply_heap, heap,
};
pub use mac::Mac;
pub use management::{CONTROL_PORT, Management, TRACE_PORT, is_reserved_port};
pub use mistake::{Mistake, Place};
pub use module::{Module, Sha256};
pub use module_check::check_hashes;
pub use nic_choice::{FoundFunction, NicChoice, NicSearch, no_driver};
pub use nic_needs::{NicNeeds, ReceiveQueues};
pub use open_ports::open_ports;
pub use packed::check_packed;
pub use plan::{Plan, plan};
pub use reach::{out_of_reach, out_of_reach_here};
pub use read::{Parsed, ParsedRules, parse, parse_rules};
pub use rules::{DEFAULT_STORM, Identity, Rules, Vlan};
pub use setting::Setting;
pub use share::Share;
pub use show::Shown;
pub use stage::Stage;
pub use topology::{Topology, thread_bits};
pub use uplink::{Gateway, Optics, PciDevice, Steering, Uplink};
