//! Checksum and segmentation offloads of the net device (virtio 1.3 ch. 5.1.6): what a driver asks for in a frame's
//! virtio-net header, checked against the frame's real headers, and the same work done in software.
//!
//! A driver may leave a checksum to whoever can compute it (NEEDS_CSUM), and hand over one frame that stands for a row
//! of TCP segments (GSO). Neither is believed: a checksum has to lie in the [`Front`] of the frame that was copied out
//! of the guest's memory, where the packet has one, so that nothing is written over that rules have looked at; and a frame to be cut has to be what its type says, from EtherType to the length of its TCP
//! header. `hdr_len` is a hint, and is not read at all (5.1.6.2.2). The front that was checked is the one that is sent.
//!
//! [`sum`] adds up, [`segment`] cuts; who gets what is the back-end's to decide, by [`Can`].

pub mod segment;
pub mod sum;
#[cfg(test)]
pub(crate) mod tests;

use nic::PartialChecksum;

use crate::shared::Features;
use sum::Sum;

/// Bytes of `virtio_net_hdr`, which comes before each frame (5.1.6).
pub const HEADER_BYTES: usize = 12;
/// Bytes of a frame's front at most: Ethernet, two VLAN tags and the longest IPv4 and TCP headers are 142.
pub const MAX_FRONT: usize = 192;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

const ETHERTYPE: usize = 12;
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
const TAGS: usize = 2;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Headers that may stand between IPv6's own and what is carried (RFC 8200 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const IPV4_IN_IP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
const UDP_LITE: u8 = 136;
const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Of GRE's header without options.
const GRE_BYTES: usize = 4;
/// Offset of the checksum in UDP's header.
const UDP_CHECKSUM: u16 = 6;
/// Offset of the checksum in TCP's header.
const TCP_CHECKSUM: u16 = 16;

/// What one side of a device can do, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Can {
    /// Complete a checksum, or do without one.
    pub checksum: bool,
    /// Cut, or take whole, TCP over IPv4.
    pub tcp4: bool,
    /// Cut, or take whole, TCP over IPv6.
    pub tcp6: bool,
    /// The same for TCP segments with CWR set.
    pub ecn: bool,
}

impl Can {
    /// What a driver that negotiated `features` may ask of the device. The bits that rest on another mean nothing without
    /// it (5.1.3.1).
    #[must_use]
    pub const fn device(features: Features) -> Self {
        let checksum = features.contains(Features::NET_CSUM);
        let tcp4 = checksum && features.contains(Features::NET_HOST_TSO4);
        let tcp6 = checksum && features.contains(Features::NET_HOST_TSO6);
        Self { checksum, tcp4, tcp6, ecn: (tcp4 || tcp6) && features.contains(Features::NET_HOST_ECN) }
    }

    /// What the device may hand a driver that negotiated `features`.
    #[must_use]
    pub const fn driver(features: Features) -> Self {
        let checksum = features.contains(Features::NET_GUEST_CSUM);
        let tcp4 = checksum && features.contains(Features::NET_GUEST_TSO4);
        let tcp6 = checksum && features.contains(Features::NET_GUEST_TSO6);
        Self { checksum, tcp4, tcp6, ecn: (tcp4 || tcp6) && features.contains(Features::NET_GUEST_ECN) }
    }

    const fn cut(self, v6: bool, ecn: bool) -> bool {
        (if v6 { self.tcp6 } else { self.tcp4 }) && (self.ecn || !ecn)
    }

    /// Whether a frame that asks for `asked` can be taken as it is.
    #[must_use]
    pub const fn take(self, asked: &Asked) -> bool {
        match (&asked.cut, asked.checksum) {
            (Some(cut), _) => self.cut(cut.v6, cut.ecn),
            (None, Some(_)) => self.checksum,
            (None, None) => true,
        }
    }
}

/// A frame that stands for a row of TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// IPv6, or else IPv4.
    pub v6: bool,
    /// CWR is set in its first segment only.
    pub ecn: bool,
    /// Bytes of payload in each segment but the last, not 0.
    pub mss: u16,
    /// Offset of the IP header.
    pub ip: u16,
    /// Offset of the TCP header.
    pub tcp: u16,
    /// Bytes of all headers, which each segment has: where the payload begins.
    pub headers: u16,
}

/// What is to be done to a frame, as checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// A checksum is to be completed.
    pub checksum: Option<PartialChecksum>,
    /// It is to be cut; never without `checksum`.
    pub cut: Option<Cut>,
}

/// The header asks for what was not negotiated, or for what the frame does not bear out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader;

/// The first bytes of a frame, copied out of its sender's memory, and how long all of it is.
#[derive(Clone, Copy, Debug)]
pub struct Front<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Bytes of the frame.
    pub len: u32,
}

impl Asked {
    /// Nothing.
    pub const NOTHING: Self = Self { checksum: None, cut: None };

    /// Whether a virtio-net header with these `flags` and `gso_type` asks for anything. Unknown flags are to be ignored
    /// (5.1.6.2.2).
    #[must_use]
    #[inline(always)]
    pub const fn anything(flags: u8, gso_type: u8) -> bool {
        flags & NEEDS_CSUM != 0 || gso_type != GSO_NONE
    }

    /// Reads and checks what the header asks for. `can` is what was negotiated; `front` has [`MAX_FRONT`] bytes of the
    /// frame, or all.
    ///
    /// # Errors
    /// Something was not negotiated, or the frame is not what the header says.
    pub fn read(header: &[u8; HEADER_BYTES], can: Can, front: Front<'_>) -> Result<Self, BadHeader> {
        let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let checksum = (header[0] & NEEDS_CSUM != 0).then(|| PartialChecksum { start: field(6), offset: field(8) });
        let Some(c) = checksum else {
            return if header[1] == GSO_NONE { Ok(Self::NOTHING) } else { Err(BadHeader) };
        };
        let packet = Packet::find(front.bytes).ok_or(BadHeader)?;
        let within = c.end() as usize <= front.bytes.len() && c.end() <= front.len;
        if !can.checksum || !within || !packet.bears(c) {
            return Err(BadHeader);
        }
        let (v6, ecn) = match (header[1] & !GSO_ECN, header[1] & GSO_ECN != 0) {
            (GSO_NONE, false) => return Ok(Self { checksum, cut: None }),
            (GSO_TCPV4, ecn) => (false, ecn),
            (GSO_TCPV6, ecn) => (true, ecn),
            _ => return Err(BadHeader),
        };
        let mss = field(4);
        if !can.cut(v6, ecn) || mss == 0 {
            return Err(BadHeader);
        }
        let headers = packet.tcp_headers(front, v6).ok_or(BadHeader)?;
        Ok(Self { checksum, cut: Some(Cut { v6, ecn, mss, ip: packet.ip as u16, tcp: c.start, headers }) })
    }

    /// The same for the frame when what follows its addresses has been moved by so many bytes, for a tag.
    #[must_use]
    pub fn moved(&self, by: i16) -> Self {
        let on = |at: u16| at.saturating_add_signed(by);
        let checksum = self.checksum.map(|c| PartialChecksum { start: on(c.start), ..c });
        let cut = self.cut.map(|c| Cut { ip: on(c.ip), tcp: on(c.tcp), headers: on(c.headers), ..c });
        Self { checksum, cut }
    }

    /// Bytes of the front that have to be the checked ones from here on: all headers of a frame that is to be cut, and
    /// what is up to the checksum of another. 0 if nothing is asked for.
    #[must_use]
    pub const fn front(&self) -> usize {
        match (&self.cut, &self.checksum) {
            (Some(cut), _) => cut.headers as usize,
            (None, Some(c)) => c.end() as usize,
            (None, None) => 0,
        }
    }

    /// The virtio-net header for a receiver that [`Can::take`] it as it is, in `buffers` buffers. Nothing of the
    /// sender's own goes through but what was checked.
    #[must_use]
    #[inline]
    pub fn header(&self, buffers: u16) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        [header[10], header[11]] = buffers.to_le_bytes();
        if let Some(c) = self.checksum {
            header[0] = NEEDS_CSUM;
            [header[6], header[7]] = c.start.to_le_bytes();
            [header[8], header[9]] = c.offset.to_le_bytes();
        }
        if let Some(cut) = self.cut {
            header[1] = if cut.v6 { GSO_TCPV6 } else { GSO_TCPV4 } | if cut.ecn { GSO_ECN } else { 0 };
            [header[2], header[3]] = cut.headers.to_le_bytes();
            [header[4], header[5]] = cut.mss.to_le_bytes();
        }
        header
    }

    /// The same as a NIC is told it. None: it cannot be.
    #[must_use]
    pub fn for_nic(&self) -> Option<nic::Offload> {
        let Some(checksum) = self.checksum else { return Some(nic::Offload::NOTHING) };
        let asked = nic::Offload::of_checksum(checksum)?;
        Some(self.cut.map_or(asked, |cut| asked.with_mss(cut.mss)))
    }
}

/// The virtio-net header of a frame from the wire in `buffers` buffers. `valid`: its checksums were found to be right, by
/// somebody whom the receiver believes (5.1.6.4.1).
#[must_use]
pub const fn received_header(valid: bool, buffers: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = if valid { DATA_VALID } else { 0 };
    [header[10], header[11]] = buffers.to_le_bytes();
    header
}

/// Stores the checksum that `checksum` asks for into a frame's front. `rest` is the sum of what follows the front. False,
/// and no effect: it does not lie in the front.
pub fn complete(front: &mut [u8], checksum: PartialChecksum, rest: Sum) -> bool {
    let start = usize::from(checksum.start);
    let at = start + usize::from(checksum.offset);
    let Some(head) = front.get(start..) else { return false };
    let mut sum = Sum::new();
    // The pseudo header's sum stands where the checksum will be.
    sum.add(head);
    sum.append(rest);
    let Some(field) = front.get_mut(at..at + 2) else { return false };
    field.copy_from_slice(&sum.checksum());
    true
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The IP header of a frame, and what is in the packet.
struct Packet {
    /// Where the header is.
    ip: usize,
    v6: bool,
    /// The protocol of what follows IP's headers, and where that is.
    protocol: u8,
    at: usize,
    /// A header between says that the address is not the last one (RFC 8200 4.4).
    routed: bool,
}

impl Packet {
    /// None: it is no packet of IP, or a fragment of one.
    fn find(bytes: &[u8]) -> Option<Self> {
        let (mut ip, mut kind) = (ETHERNET_BYTES, word(bytes, ETHERTYPE)?);
        for _ in 0..TAGS {
            if matches!(kind, VLAN | SERVICE_VLAN) {
                kind = word(bytes, ip + 2)?;
                ip += TAG_BYTES;
            }
        }
        let first = *bytes.get(ip)?;
        match (kind, first >> 4) {
            (IPV4, 4) => {
                let fragment = word(bytes, ip + 6)? & 0x3fff != 0;
                let (length, protocol) = (usize::from(first & 0xf) * 4, *bytes.get(ip + 9)?);
                let found = Self { ip, v6: false, protocol, at: ip + length, routed: false };
                (!fragment && length >= IPV4_BYTES).then_some(found)
            }
            (IPV6, 6) => {
                let (mut protocol, mut at, mut routed) = (*bytes.get(ip + 6)?, ip + IPV6_BYTES, false);
                // Each has 8 bytes or more, so the front ends this.
                while let HOP_BY_HOP | ROUTING | DESTINATION = protocol {
                    routed |= protocol == ROUTING;
                    protocol = *bytes.get(at)?;
                    at += (usize::from(*bytes.get(at + 1)?) + 1) * 8;
                }
                (protocol != FRAGMENT).then_some(Self { ip, v6: true, protocol, at, routed })
            }
            _ => None,
        }
    }

    /// Whether a checksum may be put there: at the packet's own, or within what it carries, behind everything that rules for
    /// frames look at. What they have passed must not be written over afterwards.
    fn bears(&self, checksum: PartialChecksum) -> bool {
        let (start, offset) = (usize::from(checksum.start), checksum.offset);
        match self.protocol {
            TCP => start == self.at && offset == TCP_CHECKSUM,
            UDP | UDP_LITE if start == self.at => offset == UDP_CHECKSUM,
            UDP | UDP_LITE => start >= self.at + UDP_BYTES,
            // GRE and its like: IP in it.
            IPV4_IN_IP | IPV6_IN_IP | GRE => start >= self.at + GRE_BYTES,
            _ => false,
        }
    }

    /// How many bytes the headers have of a frame of TCP that is to be cut. None: it cannot be.
    fn tcp_headers(&self, front: Front<'_>, v6: bool) -> Option<u16> {
        let bytes = front.bytes;
        let packet = (front.len as usize).checked_sub(self.ip)?;
        let length =
            if v6 { IPV6_BYTES + usize::from(word(bytes, self.ip + 4)?) } else { word(bytes, self.ip + 2)?.into() };
        let tcp_bytes = usize::from(*bytes.get(self.at + 12)? >> 4) * 4;
        let headers = self.at + tcp_bytes;
        let sound = self.v6 == v6 && self.protocol == TCP && !self.routed && length == packet;
        let fits = tcp_bytes >= TCP_BYTES && headers <= bytes.len() && headers < front.len as usize;
        // Less than MAX_FRONT.
        (sound && fits).then_some(headers as u16)
    }
}
