//! `[[stage]]`: what is done to frames of the ports that name it.

use alloc::string::String;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use crate::mac::Mac;
use crate::mistake::Place;

/// `[[stage]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Under which ports name it, and under which it is counted.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// To which frames.
    pub rule: Rule,
    /// Where `to` stands, or the head of the table.
    pub place: Place,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Lets pass, without a look at later stages.
    Allow,
    /// Drops.
    Deny,
    /// Counts.
    Count,
    /// Gives a guest a copy.
    Mirror {
        /// Its name.
        guest: String,
        /// Which of its network devices, from 0.
        net: usize,
    },
    /// Drops what is above the limit.
    Limit {
        /// Bytes or frames a second.
        rate: u64,
        /// Bytes or frames at once.
        burst: u64,
        /// Whether it is bytes.
        bytes: bool,
    },
}

/// To which frames: those for which everything holds that is given.
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
    /// Whether TCP asks for a connection in them.
    pub opening: Option<bool>,
    /// ICMP's or ICMPv6's type.
    pub icmp_type: Option<u8>,
}
