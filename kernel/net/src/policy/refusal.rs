//! Why the rules refuse a frame, and the counter for each cause.

use virtio::counters::Counter;

use crate::counters::PortCounters;

/// Why the rules refuse a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its MAC source address is not the port's.
    Mac,
    /// An IP address in it is not the port's.
    Address,
    /// Its headers cannot be read, and a rule looks at them.
    Unreadable,
    /// It is in no VLAN of the port.
    Vlan,
    /// A stage denies it.
    Denied,
    /// It is above a stage's limit.
    Limited,
    /// It would be flooded, and is above the storm limit.
    Storm,
}

impl Refusal {
    /// Returns the counter for a frame from a guest that was refused on its way into the switch.
    #[must_use]
    pub const fn entering(self, counters: &PortCounters) -> &Counter {
        match self {
            Self::Mac => &counters.drops.tx_spoofed_mac,
            Self::Address => &counters.drops.tx_spoofed_address,
            Self::Unreadable => &counters.drops.tx_unreadable,
            Self::Vlan => &counters.drops.tx_vlan,
            Self::Denied => &counters.drops.tx_denied,
            Self::Limited => &counters.drops.tx_limited,
            Self::Storm => &counters.drops.tx_storm,
        }
    }

    /// Returns the counter for a frame to a guest that was refused on its way out of the switch.
    #[must_use]
    pub const fn leaving(self, counters: &PortCounters) -> &Counter {
        match self {
            Self::Denied => &counters.drops.rx_denied,
            Self::Limited => &counters.drops.rx_limited,
            Self::Mac | Self::Address | Self::Unreadable | Self::Vlan | Self::Storm => &counters.drops.rx_unreadable,
        }
    }
}
