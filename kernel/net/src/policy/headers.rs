//! Parses the headers of a frame as far as rules look at them: Ethernet with up to one tag (IEEE 802.3, 802.1Q), ARP
//! (RFC 826), IPv4 (791), IPv6 with its extension headers (8200), TCP, UDP, ICMP, and neighbour discovery (4861).
//!
//! It reads the copy of the frame's first bytes that the receiver will get, never the guest's memory. A header beyond
//! the copy, or longer than the packet, is [`Transport::Hidden`] or [`Network::Broken`]. Rules that have to look at it
//! refuse the frame.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::vlan::{SERVICE_TAGGED, TAGGED};
use crate::mac::Mac;

/// Bytes of a frame that rules look at. There is room for a tag, IPv6 with 24 bytes of extension headers, and a
/// neighbour advertisement with its option. With another tag they are 128 bytes, as many as the driver of an 82599
/// copies.
pub const LOOKED_AT: usize = 124;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;
/// Protocol number of UDP-Lite. Its ports are where UDP's are.
const UDP_LITE: u8 = 136;
/// Protocol number of SCTP. Its ports are where UDP's are.
const SCTP: u8 = 132;

/// Returns whether the header of a protocol starts with ports.
#[inline]
#[must_use]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | UDP_LITE | SCTP)
}

/// Most extension headers of an IPv6 packet that are followed.
const MAX_EXTENSIONS: usize = 8;

/// The headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Destination address.
    pub destination: Mac,
    /// Source address.
    pub source: Mac,
    /// The tag (TCI) before its EtherType.
    pub tag: Option<u16>,
    /// EtherType of the payload. If there is a second tag, it is the type of that tag.
    pub ether_type: u16,
    /// The network layer.
    pub network: Network,
}

/// The network layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Neither ARP nor IP, or not parsed.
    Other,
    /// ARP or IP by its EtherType, but too short or malformed.
    Broken,
    /// ARP for IPv4 on Ethernet.
    Arp(Arp),
    /// An IPv4 or IPv6 packet.
    Ip(Packet),
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether it is a request.
    pub request: bool,
    /// Sender's hardware address.
    pub sender_mac: Mac,
    /// Sender's protocol address.
    pub sender: Ipv4Addr,
    /// Target's protocol address.
    pub target: Ipv4Addr,
}

/// An IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol after all extension headers. `None`: the extension headers go on beyond the copied bytes.
    pub protocol: Option<u8>,
    /// Whether it is a fragment, the first or a later one.
    pub fragment: bool,
    /// The transport layer.
    pub transport: Transport,
}

/// The transport layer of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A protocol without ports.
    Other,
    /// A later fragment. The header was in the first fragment.
    Later,
    /// The header is beyond the copied bytes, or cut off.
    Hidden,
    /// Ports of TCP, UDP, UDP-Lite or SCTP, and TCP's flags (0 for others).
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// TCP's flags.
        flags: u8,
    },
    /// ICMP or ICMPv6, with the contents of neighbour discovery.
    Icmp {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
        /// Contents of neighbour discovery.
        neighbour: Neighbour,
    },
}

/// The addresses in a message of neighbour discovery (RFC 4861 ch. 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// It is no message of neighbour discovery.
    None,
    /// It is such a message, but cut off, beyond the copied bytes, or a fragment (forbidden by RFC 6980).
    Broken,
    /// A router advertisement or a redirect: only routers send these.
    Router {
        /// The address to which a redirect leads. `None`: it is an advertisement.
        target: Option<Ipv6Addr>,
        /// The link-layer address that it announces for its sender, or for that target.
        address: Option<Mac>,
    },
    /// A solicitation or advertisement.
    Says {
        /// The address that it solicits or advertises. `None` in a router solicitation.
        target: Option<Ipv6Addr>,
        /// The link-layer address that it announces for its sender, or for the target that it advertises.
        address: Option<Mac>,
    },
}

/// Bytes that are read by offset. A read beyond the end gives `None`.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    #[inline]
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    #[inline]
    fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    #[inline]
    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    fn mac(self, at: usize) -> Option<Mac> {
        self.array(at).map(Mac::new)
    }

    fn v4(self, at: usize) -> Option<Ipv4Addr> {
        self.array::<4>(at).map(Ipv4Addr::from)
    }

    fn v6(self, at: usize) -> Option<Ipv6Addr> {
        self.array::<16>(at).map(Ipv6Addr::from)
    }

    #[inline]
    fn from(self, at: usize) -> Bytes<'a> {
        Bytes(self.0.get(at..).unwrap_or_default())
    }
}

impl Headers {
    /// Parses the first bytes of a frame. If `tags`, a tag is parsed; otherwise it is payload. If `packets`, the
    /// network layer is parsed too. `None`: the frame is shorter than an Ethernet header.
    #[must_use]
    pub fn parse(front: &[u8], tags: bool, packets: bool) -> Option<Self> {
        let bytes = Bytes(front);
        let (destination, source) = (bytes.mac(0)?, bytes.mac(6)?);
        let outer = bytes.u16(12)?;
        let (tag, ether_type, payload) = if tags && outer == TAGGED {
            (Some(bytes.u16(14)?), bytes.u16(16)?, bytes.from(18))
        } else {
            (None, outer, bytes.from(14))
        };
        let network = match ether_type {
            _ if !packets => Some(Network::Other),
            IPV4 => ipv4(payload).map(Network::Ip),
            IPV6 => ipv6(payload).map(Network::Ip),
            ARP => arp(payload).map(Network::Arp),
            _ => Some(Network::Other),
        };
        Some(Self { destination, source, tag, ether_type, network: network.unwrap_or(Network::Broken) })
    }

    /// Returns whether the payload starts with another tag.
    #[must_use]
    pub const fn has_inner_tag(&self) -> bool {
        matches!(self.ether_type, TAGGED | SERVICE_TAGGED)
    }
}

fn arp(bytes: Bytes<'_>) -> Option<Arp> {
    // Hardware type Ethernet, protocol type IPv4, six and four bytes of address.
    let known = bytes.array(0)? == [0, 1, 8, 0, 6, 4];
    let operation = bytes.u16(6)?;
    known.then_some(Arp {
        request: operation == 1,
        sender_mac: bytes.mac(8)?,
        sender: bytes.v4(14)?,
        target: bytes.v4(24)?,
    })
}

fn ipv4(bytes: Bytes<'_>) -> Option<Packet> {
    let first = bytes.u8(0)?;
    let header = usize::from(first & 15) * 4;
    let total = usize::from(bytes.u16(2)?);
    if first >> 4 != 4 || header < 20 || total < header {
        return None;
    }
    let fragment = bytes.u16(6)?;
    let (more, offset) = (fragment & 0x2000 != 0, fragment & 0x1fff);
    let protocol = bytes.u8(9)?;
    let transport = if offset != 0 {
        Transport::Later
    } else {
        transport(protocol, bytes.from(header), total.checked_sub(header)?, more)
    };
    Some(Packet {
        source: bytes.v4(12)?.into(),
        destination: bytes.v4(16)?.into(),
        protocol: Some(protocol),
        fragment: more || offset != 0,
        transport,
    })
}

fn ipv6(bytes: Bytes<'_>) -> Option<Packet> {
    if bytes.u8(0)? >> 4 != 6 {
        return None;
    }
    let end = usize::from(bytes.u16(4)?).saturating_add(40);
    let (source, destination) = (bytes.v6(8)?.into(), bytes.v6(24)?.into());
    let (mut protocol, mut at, mut fragment) = (bytes.u8(6)?, 40, false);
    let packet = |protocol, fragment, transport| Packet { source, destination, protocol, fragment, transport };
    for _ in 0..=MAX_EXTENSIONS {
        let extension = bytes.from(at);
        let (next, len) = match protocol {
            // Hop-by-hop options, routing, destination options, mobility, HIP, shim6: in units of eight bytes.
            0 | 43 | 60 | 135 | 139 | 140 => {
                (extension.u8(0), extension.u8(1).map(|n| usize::from(n).saturating_add(1).saturating_mul(8)))
            }
            // Authentication: in units of four.
            51 => (extension.u8(0), extension.u8(1).map(|n| usize::from(n).saturating_add(2).saturating_mul(4))),
            44 => {
                fragment = true;
                match extension.u16(2) {
                    Some(offset) if offset & !7 != 0 => {
                        return Some(packet(extension.u8(0), true, Transport::Later));
                    }
                    offset => (extension.u8(0), offset.map(|_| 8)),
                }
            }
            _ => {
                let transport = match end.checked_sub(at) {
                    Some(len) => transport(protocol, extension, len, fragment),
                    None => Transport::Hidden,
                };
                return Some(packet(Some(protocol), fragment, transport));
            }
        };
        let (Some(next), Some(len)) = (next, len) else { break };
        protocol = next;
        at = len.saturating_add(at);
    }
    Some(packet(None, fragment, Transport::Hidden))
}

/// Parses the header of `protocol` in a packet with `len` bytes after IP's headers. `bytes` may end earlier, or go on
/// with padding.
fn transport(protocol: u8, bytes: Bytes<'_>, len: usize, fragment: bool) -> Transport {
    let bytes = Bytes(bytes.0.get(..len).unwrap_or(bytes.0));
    let found = match protocol {
        _ if has_ports(protocol) => (|| {
            let flags = if protocol == TCP { bytes.u8(13)? } else { 0 };
            Some(Transport::Ports { source: bytes.u16(0)?, destination: bytes.u16(2)?, flags })
        })(),
        ICMP | ICMPV6 => (|| {
            let (kind, code) = (bytes.u8(0)?, bytes.u8(1)?);
            let neighbour = match protocol {
                ICMPV6 => neighbour(kind, bytes, len, fragment),
                _ => Neighbour::None,
            };
            Some(Transport::Icmp { kind, code, neighbour })
        })(),
        _ => Some(Transport::Other),
    };
    found.unwrap_or(Transport::Hidden)
}

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Option: link-layer address of the source (4.6.1).
const SOURCE_ADDRESS: u8 = 1;
/// Option: link-layer address of the target (4.6.1).
const TARGET_ADDRESS: u8 = 2;

/// Parses a message of neighbour discovery of `len` bytes, all of which must be there. Only a router advertisement may be longer than the
/// copied bytes: it has many options, and the one that counts says where its own sender is.
fn neighbour(kind: u8, bytes: Bytes<'_>, len: usize, fragment: bool) -> Neighbour {
    // Bytes before the options.
    let (fixed, option) = match kind {
        ROUTER_SOLICITATION => (8, SOURCE_ADDRESS),
        ROUTER_ADVERTISEMENT => (16, SOURCE_ADDRESS),
        NEIGHBOUR_SOLICITATION => (24, SOURCE_ADDRESS),
        NEIGHBOUR_ADVERTISEMENT => (24, TARGET_ADDRESS),
        REDIRECT => (40, TARGET_ADDRESS),
        _ => return Neighbour::None,
    };
    let copied = bytes.0.len();
    let may_go_on = kind == ROUTER_ADVERTISEMENT;
    if fragment || copied < fixed || (copied < len && !may_go_on) {
        return Neighbour::Broken;
    }
    let target = if matches!(kind, ROUTER_SOLICITATION | ROUTER_ADVERTISEMENT) { None } else { bytes.v6(8) };
    let mut address = None;
    let mut at: usize = fixed;
    while at < len {
        let (found, units) = match (bytes.u8(at), bytes.u8(at.saturating_add(1))) {
            (Some(found), Some(units @ 1..)) => (found, units),
            (_, None) if may_go_on && copied < len => break,
            _ => return Neighbour::Broken,
        };
        if found == option {
            // Two such options are refused: some receivers take the first, others the last.
            let (Some(mac), None) = (bytes.mac(at.saturating_add(2)), address) else { return Neighbour::Broken };
            address = Some(mac);
        }
        at = at.saturating_add(8 * usize::from(units));
    }
    match kind {
        ROUTER_ADVERTISEMENT | REDIRECT => Neighbour::Router { target, address },
        _ => Neighbour::Says { target, address },
    }
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
