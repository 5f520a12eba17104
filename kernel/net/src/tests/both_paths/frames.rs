//! What stands in the frames of a conversation: most of what rules look at, and what is nearly that.

use proptest::prelude::*;

use crate::policy::headers::{ARP, ICMP, ICMPV6, IPV4, IPV6, TCP, UDP};

/// The headers of frames that are sent together.
#[derive(Clone, Debug)]
pub(super) struct What {
    ether_type: u16,
    /// IP's first byte.
    version: u8,
    /// Flags and offset of a fragment.
    fragment: u16,
    protocol: u8,
    /// The last bytes of the two IP addresses.
    addresses: (u8, u8),
    port: u16,
    flags: u8,
    /// What IP says of its length, if not the truth.
    length: Option<u16>,
    /// What is counted up from frame to frame.
    varies: Varies,
}

/// In place of the last byte of an IP address: the sender's own.
const OWN: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varies {
    /// Identification only.
    Nothing,
    From,
    To,
    Port,
    Flags,
    Length,
    Type,
}

impl What {
    /// A type that no rule knows.
    pub(super) const UNKNOWN: Self = Self {
        ether_type: 0x88b5,
        version: 0,
        fragment: 0,
        protocol: UDP,
        addresses: (OWN, 1),
        port: 9,
        flags: 0,
        length: None,
        varies: Varies::Nothing,
    };
}

/// Most are in order.
pub(super) fn what() -> impl Strategy<Value = What> {
    let ether_type = prop_oneof![
        2 => Just(0x88b5u16), 8 => Just(IPV4), 4 => Just(IPV6), 1 => Just(ARP), 1 => Just(0x8100u16), 1 => Just(0x88a8u16),
    ];
    let version = prop_oneof![30 => Just(0u8), 1 => Just(0x46u8), 1 => Just(0x65u8), 1 => any::<u8>()];
    let fragment = prop_oneof![15 => Just(0u16), 10 => Just(0x4000u16), 1 => Just(0x2000u16), 1 => any::<u16>()];
    let protocol = prop_oneof![12 => Just(UDP), 12 => Just(TCP), 1 => Just(ICMP), 1 => Just(ICMPV6), 1 => Just(47u8), 1 => any::<u8>()];
    let addresses = (prop_oneof![12 => Just(OWN), 1 => 0u8..8], prop_oneof![8 => 1u8..4, 1 => Just(0u8)]);
    let length = prop_oneof![16 => Just(None), 2 => (0u16..60).prop_map(Some), 1 => any::<u16>().prop_map(Some)];
    let varies = prop_oneof![
        4 => Just(Varies::Nothing),
        1 => Just(Varies::From),
        1 => Just(Varies::To),
        2 => Just(Varies::Port),
        1 => Just(Varies::Flags),
        1 => Just(Varies::Length),
        1 => Just(Varies::Type),
    ];
    let port = prop_oneof![6 => 6u16..12, 1 => any::<u16>()];
    let flags = prop_oneof![Just(0x10u8), Just(0x02), any::<u8>()];
    (ether_type, version, fragment, protocol, addresses, (port, flags), length, varies).prop_map(
        |(ether_type, version, fragment, protocol, addresses, (port, flags), length, varies)| What {
            ether_type,
            version,
            fragment,
            protocol,
            addresses,
            port,
            flags,
            length,
            varies,
        },
    )
}

impl What {
    /// Puts it into frame `i`, as far as there is room.
    pub(super) fn put(&self, frame: &mut [u8], i: usize) {
        let by = |varies| if self.varies == varies { i as u8 / 3 } else { 0 };
        let own = frame.get(11).copied().unwrap_or(0);
        let from = if self.addresses.0 == OWN { own } else { self.addresses.0 };
        let (from, to) = (from.wrapping_add(by(Varies::From)), self.addresses.1.wrapping_add(by(Varies::To)));
        let ether_type = self.ether_type ^ u16::from(by(Varies::Type) & 1);
        let behind = |header: usize| frame.len().saturating_sub(header) as u16;
        let lie = |length: u16| self.length.unwrap_or(length).wrapping_add(u16::from(by(Varies::Length)));
        let mut bytes = ether_type.to_be_bytes().to_vec();
        let version = |right: u8| if self.version == 0 { right } else { self.version };
        match self.ether_type {
            IPV4 => {
                bytes.extend([version(0x45), 0]);
                bytes.extend(lie(behind(14)).to_be_bytes());
                bytes.extend((i as u16).to_be_bytes());
                bytes.extend(self.fragment.to_be_bytes());
                bytes.extend([64, self.protocol, i as u8, 9, 10, 0, 0, from, 10, 0, 0, to]);
            }
            IPV6 => {
                bytes.extend([version(0x60), 0, 0, i as u8]);
                bytes.extend(lie(behind(54)).to_be_bytes());
                bytes.extend([self.protocol, 64]);
                for last in [from, to] {
                    bytes.extend([if last == 0 { 0 } else { 0xfd }, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
                }
            }
            ARP => {
                let source = frame.get(6..12).unwrap_or(&[0; 6]);
                bytes.extend([0, 1, 8, 0, 6, 4, 0, 1]);
                bytes.extend([source, &[10, 0, 0, from], &[0; 6], &[10, 0, 0, to]].concat());
            }
            _ => return put(frame, &bytes),
        }
        // Ports, sequence numbers, and TCP's flags behind the length of its header.
        bytes.extend([3, 0]);
        bytes.extend((self.port.wrapping_add(u16::from(by(Varies::Port)))).to_be_bytes());
        bytes.extend([i as u8; 8]);
        bytes.extend([0x50, self.flags.wrapping_add(by(Varies::Flags))]);
        put(frame, &bytes);
    }
}

/// Writes bytes where a frame's type is, and behind it.
fn put(frame: &mut [u8], bytes: &[u8]) {
    for (to, from) in frame.iter_mut().skip(12).zip(bytes) {
        *to = *from;
    }
}
