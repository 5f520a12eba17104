//! `[management]`: the guest by which the machine is managed over a network.

use alloc::string::String;

use control::Permissions;

use crate::mistake::Place;

/// The port of the management guest with commands and answers.
pub const CONTROL_PORT: &str = "org.sidecore.control";
/// The port of the management guest with trace records.
pub const TRACE_PORT: &str = "org.sidecore.trace";

/// `[management]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// Name of the guest.
    pub guest: String,
    /// `allow`: what the guest may ask. Only `view` without it.
    pub allow: Permissions,
    /// `modules`: bytes of memory for modules that come while the machine runs. 0: none can come, and nothing can be applied.
    pub modules: u64,
    /// Its place in the file.
    pub place: Place,
}

/// Whether only the management guest may have a port of this name.
#[must_use]
pub fn is_reserved_port(name: &str) -> bool {
    [CONTROL_PORT, TRACE_PORT].contains(&name)
}
