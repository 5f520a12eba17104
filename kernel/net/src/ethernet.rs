//! Sizes of Ethernet (IEEE 802.3 3.1, 802.1Q 9.3).

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: u32 = 14;
/// Bytes that a VLAN tag adds.
pub const VLAN_BYTES: u32 = 4;
