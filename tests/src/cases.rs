//! The scenarios themselves, by what they are about.

pub mod boot;
pub mod completions;
pub mod eli;
pub mod exits;
pub mod hostile;
pub mod isolation;
pub mod ixgbe;
pub mod life;
pub mod network;
pub mod offloads;
pub mod policies;
pub mod probe;
pub mod queues;
pub mod requests;
pub mod rings;
pub mod uplink;
pub mod uplink_faults;
pub mod uplink_virtio;
pub mod vhost;
