//! Which frames the device is to let in (data sheet 7.1.1).

use alloc::vec::Vec;

use crate::nic::Unicast;

/// Exact addresses besides the device's own.
pub const MAX_ADDRESSES: usize = 127;
/// Multicast addresses that the driver is told at once. With more of them, all multicasts are let in: the table has bits for a
/// hash of 12 bits, and would soon let in most.
pub const MAX_GROUPS: usize = 128;

/// What to let in, besides the device's own address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// All unicasts.
    pub promiscuous: bool,
    /// All multicasts.
    pub all_multicast: bool,
    /// Broadcasts.
    pub broadcast: bool,
    /// Unicasts to these, each by its queue with [`Steering::Addresses`](crate::Steering::Addresses). More than [`MAX_ADDRESSES`]: the device is made
    /// promiscuous, and all come by queue 0.
    pub addresses: Vec<Unicast>,
    /// Multicasts to these, and to others that share their hash.
    pub groups: Vec<[u8; 6]>,
    /// Tagged frames of these VLANs only. None: of all. Addresses are steered in the first 64 VLANs named here, and without
    /// a tag.
    pub vlans: Option<Vec<u16>>,
}

impl Filter {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self { promiscuous: true, all_multicast: true, broadcast: true, ..Self::default() }
    }

    /// Whether the device's table has room for all addresses.
    pub(crate) fn fits(&self) -> bool {
        self.addresses.len() <= MAX_ADDRESSES
    }

    /// With room for all addresses that there can be, so that no change takes memory.
    pub(crate) fn roomy(mut self) -> Self {
        self.addresses.reserve(MAX_ADDRESSES.saturating_sub(self.addresses.len()));
        self.groups.reserve(MAX_GROUPS.saturating_sub(self.groups.len()));
        self
    }
}
