//! Claims: the addresses that belong to others, which no port may announce for itself.
//!
//! A port without configured IP addresses may send from any. Its ARP and neighbour discovery may still not say that it
//! has an address of another port or of a gateway, nor name the MAC address of one of these, or a MAC address that the
//! port may not send from. Otherwise it could draw the frames of others to itself.
//!
//! - An address belongs to a port if it is configured there: the MAC addresses, the IP addresses, and the IPv6
//!   link-local addresses that follow from the MAC addresses (RFC 4291, appendix A).
//! - An IP address belongs to a port in the VLANs of that port only. Two VLANs may use the same ones. A MAC address is a port's in all VLANs,
//!   as it is for the sources of frames.
//! - ARP and neighbour discovery that cannot be read are refused. A receiver may read them differently.
//! - A redirect that says where its target is may not name a target or a MAC address of others, even if that is true: whom it tells finds
//!   it out by itself. One that quotes a packet is longer than what is read, and is refused.
//! - That a port is a router is no claim: it is not said which one is the right router.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::guard::{Guard, Spoof, link_local};
use super::headers::{ARP, Arp, Headers, ICMPV6, IPV6, NEIGHBOUR_ADVERTISEMENT, Neighbour, Network, Packet, Transport};
use super::vlan::{Membership, Vlan};
use crate::mac::Mac;

/// A port, a gateway or an uplink's NIC, and its addresses.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// The VLANs in which the IP addresses are its own.
    pub vlan: Membership,
    /// Its MAC addresses.
    pub macs: Vec<Mac>,
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
}

/// The addresses of others, as one port sees them.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Sorted. The number is that of the owner in `vlans`.
    addresses: Box<[(IpAddr, usize)]>,
    /// Sorted, as numbers.
    macs: Box<[u64]>,
    vlans: Box<[Membership]>,
}

impl Claims {
    /// Collects the addresses of `others`.
    #[must_use]
    pub fn new<'a>(others: impl IntoIterator<Item = &'a Owner>) -> Self {
        let (mut addresses, mut macs, mut vlans) = (Vec::new(), Vec::new(), Vec::new());
        for owner in others {
            let own = owner.macs.iter().map(|&mac| IpAddr::from(link_local(mac)));
            addresses.extend(owner.addresses.iter().copied().chain(own).map(|address| (address, vlans.len())));
            macs.extend(owner.macs.iter().map(|mac| mac.0));
            vlans.push(owner.vlan.clone());
        }
        addresses.sort_unstable();
        macs.sort_unstable();
        Self { addresses: addresses.into(), macs: macs.into(), vlans: vlans.into() }
    }

    /// Returns whether nobody has an address.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.macs.is_empty()
    }

    /// Checks what a frame of `vlan` announces. `guard` has the MAC addresses of its port.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, guard: &Guard, headers: &Headers, vlan: Vlan) -> Result<(), Spoof> {
        if self.is_empty() {
            return Ok(());
        }
        match &headers.network {
            Network::Arp(arp) => self.check_arp(guard, arp, vlan),
            Network::Ip(packet) if packet.source.is_ipv6() => self.check_packet(guard, packet, vlan),
            Network::Broken if matches!(headers.ether_type, ARP | IPV6) => Err(Spoof::Unreadable),
            Network::Broken | Network::Ip(_) | Network::Other => Ok(()),
        }
    }

    fn check_arp(&self, guard: &Guard, arp: &Arp, vlan: Vlan) -> Result<(), Spoof> {
        self.check_mac(guard, arp.sender_mac)?;
        // A probe has no sender yet: it claims its target (RFC 5227, 2.1.1).
        let claimed = if arp.request && arp.sender.is_unspecified() { arp.target } else { arp.sender };
        self.check_address(claimed.into(), vlan)
    }

    fn check_packet(&self, guard: &Guard, packet: &Packet, vlan: Vlan) -> Result<(), Spoof> {
        let (kind, neighbour) = match (packet.protocol, packet.transport) {
            // Neighbour discovery could follow beyond the copied bytes.
            (None | Some(ICMPV6), Transport::Hidden) => return Err(Spoof::Unreadable),
            (Some(ICMPV6), Transport::Icmp { kind, neighbour, .. }) => (kind, neighbour),
            _ => return Ok(()),
        };
        match neighbour {
            Neighbour::None => return Ok(()),
            Neighbour::Broken => return Err(Spoof::Unreadable),
            Neighbour::Router { address: None, .. } => {}
            Neighbour::Router { target: None, address: Some(mac) } => self.check_mac(guard, mac)?,
            // A redirect announces where its target is. That may be somebody whom nobody here knows.
            Neighbour::Router { target: Some(target), address: Some(mac) } => {
                self.check_others_mac(mac)?;
                self.check_address(target.into(), vlan)?;
            }
            Neighbour::Says { target, address } => {
                if let Some(mac) = address {
                    self.check_mac(guard, mac)?;
                }
                // A solicitation without a source claims its target (RFC 4862, 5.4.2).
                if let Some(target) = target
                    && (kind == NEIGHBOUR_ADVERTISEMENT || packet.source.is_unspecified())
                {
                    self.check_address(target.into(), vlan)?;
                }
            }
        }
        self.check_address(packet.source, vlan)
    }

    fn check_mac(&self, guard: &Guard, mac: Mac) -> Result<(), Spoof> {
        if guard.permits(mac) { self.check_others_mac(mac) } else { Err(Spoof::Mac) }
    }

    fn check_others_mac(&self, mac: Mac) -> Result<(), Spoof> {
        if self.macs.binary_search(&mac.0).is_ok() { Err(Spoof::Mac) } else { Ok(()) }
    }

    fn check_address(&self, address: IpAddr, vlan: Vlan) -> Result<(), Spoof> {
        let from = self.addresses.partition_point(|(other, _)| *other < address);
        let mut same = self.addresses.iter().skip(from).take_while(|(other, _)| *other == address);
        let others = same.any(|&(_, owner)| self.vlans.get(owner).is_some_and(|own| own.carries(vlan).is_some()));
        if others { Err(Spoof::Address) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
