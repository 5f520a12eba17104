//! `[[stage]]`: a rule for frames, and the action for frames that match.

use alloc::string::String;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use crate::mac::Mac;
use crate::mistake::Place;

/// IP's protocols that have a word in the file (IANA's assigned protocol numbers).
pub(crate) const PROTOCOLS: [(&str, u8); 4] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58)];

/// `[[stage]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its name, for ports and for counters.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// The frames it applies to.
    pub rule: Rule,
    /// Place of `to` in the file, or of the head of the table.
    pub place: Place,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The frame passes. Later stages do not see it.
    Allow,
    /// The frame is dropped.
    Deny,
    /// The frame is only counted.
    Count,
    /// A guest gets a copy.
    Mirror {
        /// Its name.
        guest: String,
        /// Which of its network devices, from 0.
        net: usize,
    },
    /// Frames above the limit are dropped.
    Limit {
        /// Bytes or frames a second.
        rate: u64,
        /// Bytes or frames at once.
        burst: u64,
        /// Whether it is bytes.
        bytes: bool,
    },
}

/// Conditions for frames. A frame must meet all conditions that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// EtherType.
    pub ether_type: Option<u16>,
    /// VLAN.
    pub vlan: Option<u16>,
    /// MAC address that they come from.
    pub source_mac: Option<Mac>,
    /// MAC address that they go to.
    pub destination_mac: Option<Mac>,
    /// IP's protocol.
    pub protocol: Option<u8>,
    /// IP addresses that they come from, and how many of their bits count.
    pub source: Option<(IpAddr, u8)>,
    /// IP addresses that they go to.
    pub destination: Option<(IpAddr, u8)>,
    /// Ports that they come from.
    pub source_port: Option<RangeInclusive<u16>>,
    /// Ports that they go to.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// Whether TCP opens a connection with them.
    pub opening: Option<bool>,
    /// ICMP's or ICMPv6's type.
    pub icmp_type: Option<u8>,
}
