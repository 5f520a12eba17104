//! A port of the switch: the configuration that only network devices have.

use crate::counters::PortCounters;
use crate::policy::Policy;

/// The back-end's configuration of a network device. It is passed when the device is attached to an engine.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Its rules. `None`: everything is allowed.
    pub policy: Option<&'static Policy>,
    /// The uplink that it is pinned to, a number in the order of the uplinks. `None`: in each VLAN the first uplink
    /// that is in the VLAN.
    pub uplink: Option<u8>,
    /// Its counters.
    pub counters: &'static PortCounters,
}

impl Port {
    /// A port without rules that may use every uplink.
    #[must_use]
    pub const fn new(counters: &'static PortCounters) -> Self {
        Self { policy: None, uplink: None, counters }
    }
}
