//! The receive filter (data sheet 7.1.1).

use alloc::vec::Vec;

use crate::nic::Unicast;

/// Most unicast addresses in the filter besides the device's own.
pub const MAX_ADDRESSES: usize = 127;
/// Most multicast addresses in the filter. With more, the device accepts all multicasts: its table has one bit for each value
/// of a 12-bit hash, and with many addresses most frames match.
pub const MAX_GROUPS: usize = 128;

/// Frames that the device accepts, besides those for its own address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// All unicasts.
    pub promiscuous: bool,
    /// All multicasts.
    pub all_multicast: bool,
    /// Broadcasts.
    pub broadcast: bool,
    /// Unicasts to these addresses. With [`Steering::Addresses`](crate::Steering::Addresses) each comes by its queue. With more
    /// than [`MAX_ADDRESSES`] the device is promiscuous, and all frames come by queue 0.
    pub addresses: Vec<Unicast>,
    /// Multicasts to these addresses, and to others with the same hash.
    pub groups: Vec<[u8; 6]>,
    /// Tagged frames of these VLANs only. `None`: of all VLANs. Steering by address works for untagged frames and in the first
    /// 64 VLANs of this list.
    pub vlans: Option<Vec<u16>>,
}

impl Filter {
    /// Accepts every frame.
    #[must_use]
    pub fn all() -> Self {
        Self { promiscuous: true, all_multicast: true, broadcast: true, ..Self::default() }
    }

    /// Whether the device's table has room for all addresses.
    pub(crate) fn fits(&self) -> bool {
        self.addresses.len() <= MAX_ADDRESSES
    }

    /// Allocates room for the most addresses, so that no later change allocates.
    pub(crate) fn preallocated(mut self) -> Self {
        self.addresses.reserve(MAX_ADDRESSES.saturating_sub(self.addresses.len()));
        self.groups.reserve(MAX_GROUPS.saturating_sub(self.groups.len()));
        self
    }
}
