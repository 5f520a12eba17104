//! Anti-spoofing: the source addresses that a guest may use.
//!
//! - If MAC addresses are configured, frames must come from one of them.
//! - If IP addresses are configured, only IPv4, IPv6 and ARP may be sent, from these addresses only. ARP and neighbour
//!   discovery may announce these addresses only, with a permitted MAC address. The IPv6 link-local address of a
//!   permitted MAC address (RFC 4291, appendix A) is permitted too.
//! - A guest with configured IP addresses is no router: it may not send router advertisements or redirects.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heapless::Vec;

use super::headers::{
    Arp, Headers, ICMPV6, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Neighbour, Network, Packet, Transport, UDP,
};
use crate::mac::Mac;

/// Most MAC addresses of a port, including the device's own.
pub const MAX_MACS: usize = 16;
/// Most IP addresses of a port.
pub const MAX_ADDRESSES: usize = 16;

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// A MAC address that is not the port's.
    Mac,
    /// An IP address that is not the port's, or a message that only routers send.
    Address,
    /// It cannot be checked: its headers are cut off, beyond the copied bytes, or malformed.
    Unreadable,
}

/// The addresses of a port.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    macs: Vec<Mac, MAX_MACS>,
    addresses: Vec<IpAddr, MAX_ADDRESSES>,
}

impl Guard {
    /// Makes a guard for these addresses. An empty list is not checked.
    ///
    /// # Errors
    /// There are more addresses than there is room for.
    pub fn new(macs: &[Mac], addresses: &[IpAddr]) -> Result<Self, TooMany> {
        Ok(Self {
            macs: Vec::from_slice(macs).map_err(|_| TooMany)?,
            addresses: Vec::from_slice(addresses).map_err(|_| TooMany)?,
        })
    }

    /// Returns whether frames may come from this MAC address.
    #[must_use]
    #[inline]
    pub fn permits(&self, source: Mac) -> bool {
        self.macs.is_empty() || self.macs.contains(&source)
    }

    /// Returns its MAC addresses. If there are none, frames may come from any.
    #[must_use]
    pub fn macs(&self) -> &[Mac] {
        &self.macs
    }

    /// Returns whether nothing is checked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.macs.is_empty() && self.addresses.is_empty()
    }

    /// Returns whether more than the MAC source address is checked.
    #[must_use]
    pub fn reads_packets(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Checks a frame.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, headers: &Headers) -> Result<(), Spoof> {
        if !self.permits(headers.source) {
            return Err(Spoof::Mac);
        }
        if self.addresses.is_empty() {
            return Ok(());
        }
        match &headers.network {
            Network::Arp(arp) => self.check_arp(arp),
            Network::Ip(packet) => self.check_packet(packet),
            Network::Broken => Err(Spoof::Unreadable),
            Network::Other => Err(Spoof::Address),
        }
    }

    fn check_arp(&self, arp: &Arp) -> Result<(), Spoof> {
        if !self.permits(arp.sender_mac) {
            return Err(Spoof::Mac);
        }
        // A probe has no sender yet (RFC 5227, 2.1.1).
        let probe = arp.request && arp.sender == Ipv4Addr::UNSPECIFIED;
        if self.owns(arp.sender.into()) || (probe && self.owns(arp.target.into())) {
            Ok(())
        } else {
            Err(Spoof::Address)
        }
    }

    fn check_packet(&self, packet: &Packet) -> Result<(), Spoof> {
        let neighbour = match packet.transport {
            Transport::Icmp { kind, neighbour, .. } if packet.protocol == Some(ICMPV6) => Some((kind, neighbour)),
            _ => None,
        };
        if let Some((_, Neighbour::Says { address: Some(mac), .. })) = neighbour
            && !self.permits(mac)
        {
            return Err(Spoof::Mac);
        }
        // An advertisement could follow extension headers beyond the copied bytes.
        if packet.source.is_ipv6() && packet.transport == Transport::Hidden {
            return Err(Spoof::Unreadable);
        }
        match neighbour {
            Some((_, Neighbour::Broken)) => return Err(Spoof::Unreadable),
            Some((_, Neighbour::Router { .. })) => return Err(Spoof::Address),
            Some((NEIGHBOUR_ADVERTISEMENT, Neighbour::Says { target: Some(target), .. }))
                if !self.owns(target.into()) =>
            {
                return Err(Spoof::Address);
            }
            _ => {}
        }
        if self.owns(packet.source) || Self::nobody_may_send(packet, |target| self.owns(target.into())) {
            Ok(())
        } else {
            Err(Spoof::Address)
        }
    }

    /// Returns whether a packet may have the unspecified source address. It may if the guest requests an address
    /// (DHCP), checks that its own is free, solicits routers, or reports its multicast groups.
    fn nobody_may_send(packet: &Packet, owns: impl Fn(Ipv6Addr) -> bool) -> bool {
        if !packet.source.is_unspecified() {
            return false;
        }
        match packet.transport {
            Transport::Ports { source: 68, destination: 67, .. } => {
                packet.protocol == Some(UDP) && packet.source.is_ipv4() && !packet.fragment
            }
            Transport::Icmp { kind, neighbour, .. } if packet.protocol == Some(ICMPV6) => match (kind, neighbour) {
                (NEIGHBOUR_SOLICITATION, Neighbour::Says { target: Some(target), address: None }) => owns(target),
                (_, Neighbour::Says { target: None, address: None }) => true,
                // Multicast listener reports and done messages (RFC 2710, 3810).
                (131 | 132 | 143, _) => true,
                _ => false,
            },
            _ => false,
        }
    }

    fn owns(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
            || matches!(address, IpAddr::V6(v6) if self.macs.iter().any(|&mac| link_local(mac) == v6))
    }
}

/// There is no room for so many addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Returns the link-local address that follows from a MAC address.
pub(super) fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
