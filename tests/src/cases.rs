//! The scenarios themselves, by what they are about.

pub mod boot;
pub mod eli;
pub mod exitless;
pub mod exits;
pub mod hostile;
pub mod isolation;
pub mod ixgbe;
pub mod life;
pub mod network;
pub mod posted;
pub mod probe;
pub mod requests;
pub mod uplink;
