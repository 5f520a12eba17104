//! Anti-spoofing: what a guest may say that it is.
//!
//! With addresses of the link layer, frames have to come from one of them. With addresses of the network layer, nothing but
//! IPv4, IPv6 and ARP is sent, from these addresses only, and what ARP and neighbour discovery say has to be true; the
//! IPv6 link-local address that follows from a MAC address (RFC 4291, appendix A) belongs to them. Such a guest is no router:
//! it advertises none and redirects nobody.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heapless::Vec;

use super::headers::{
    Arp, Headers, ICMPV6, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Neighbour, Network, Packet, Transport, UDP,
};
use crate::switch::Mac;

/// Addresses of the link layer that a port may have, the device's own among them.
pub const MAX_MACS: usize = 16;
/// Addresses of the network layer that a port may have.
pub const MAX_ADDRESSES: usize = 16;

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// An address of the link layer that is not the port's.
    Mac,
    /// An address of the network layer that is not the port's, or what only routers say.
    Address,
    /// Not to be told, because headers are cut off, out of sight, or not in the form that they must have.
    Unreadable,
}

/// Who a port is.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    macs: Vec<Mac, MAX_MACS>,
    addresses: Vec<IpAddr, MAX_ADDRESSES>,
}

impl Guard {
    /// Whoever has these addresses. Those of a layer are checked if there are any.
    ///
    /// # Errors
    /// More than there is room for.
    pub fn new(macs: &[Mac], addresses: &[IpAddr]) -> Result<Self, TooMany> {
        Ok(Self {
            macs: Vec::from_slice(macs).map_err(|_| TooMany)?,
            addresses: Vec::from_slice(addresses).map_err(|_| TooMany)?,
        })
    }

    /// Whether this may be its address of the link layer.
    #[must_use]
    #[inline]
    pub fn permits(&self, source: Mac) -> bool {
        self.macs.is_empty() || self.macs.contains(&source)
    }

    /// Its addresses of the link layer; none: it may have any.
    #[must_use]
    pub fn macs(&self) -> &[Mac] {
        &self.macs
    }

    /// Whether nothing is checked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.macs.is_empty() && self.addresses.is_empty()
    }

    /// Whether what is in a frame is looked at.
    #[must_use]
    pub fn reads_packets(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Checks a frame.
    ///
    /// # Errors
    /// What it pretends.
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
        // An advertisement may be behind extension headers that are out of sight.
        if packet.source.is_ipv6() && packet.transport == Transport::Hidden {
            return Err(Spoof::Unreadable);
        }
        match neighbour {
            Some((_, Neighbour::Broken)) => return Err(Spoof::Unreadable),
            Some((_, Neighbour::Router)) => return Err(Spoof::Address),
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

    /// Whether a packet without a source is one that has none by rights: a guest that asks for an address, asks whether its own is
    /// free, asks for routers, or says which groups it listens to.
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
                // Listener reports and done (RFC 2710, 3810).
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

/// There is no room for so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// The address that an interface gives itself from its MAC address.
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
