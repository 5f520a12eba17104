//! The network back-end of the I/O engine: virtio-net devices connected by a learning switch, with rules for each port
//! and NICs as uplinks (virtio 1.3 ch. 5.1). `README.md` leads through the files in the order of a frame's way.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod addresses;
pub mod backend;
mod batch;
mod bridge;
mod control_queue;
pub mod counters;
mod current;
mod cursor;
pub mod device;
pub mod ethernet;
pub mod features;
mod flow;
mod flow_match;
mod frame;
mod frame_head;
pub mod mac;
mod nic_filter;
pub mod offload;
mod path;
pub mod policy;
pub mod port;
mod port_rules;
pub mod ports;
mod receive_buffers;
mod status;
pub mod switch;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]
pub mod testing;
pub mod uplink;
mod uplink_choice;
pub mod watch;
mod work;

#[cfg(test)]
mod tests;
