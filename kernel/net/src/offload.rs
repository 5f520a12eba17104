//! Checksum and segmentation offloads of the network device (virtio 1.3 ch. 5.1.6). This module checks what a driver
//! requests in a frame's virtio-net header, and does the same work in software.
//!
//! A driver may leave a checksum incomplete (NEEDS_CSUM), and may send up to 64 KiB of TCP as one frame (GSO). The
//! request is checked against the frame's own headers. These are in the [`Front`], which was copied out of guest
//! memory. The conditions are:
//!
//! - A checksum must lie where the packet has one, so that it does not overwrite bytes that rules have checked.
//! - A frame to be segmented must be what its GSO type says, from the EtherType to the length of the TCP header.
//! - `hdr_len` is a hint, and is not read (5.1.6.2.2).
//!
//! The front that was checked is the one that is sent. [`sum`] computes checksums. [`segment`] cuts frames into
//! segments. From [`OffloadSupport`] the paths decide which work is done here.

#[cfg(test)]
pub(crate) mod samples;
pub mod segment;
pub mod sum;
#[cfg(test)]
mod tests;

use nic::PartialChecksum;

use crate::features::Features;
use sum::Sum;

/// Bytes of `virtio_net_hdr`, which precedes each frame (5.1.6).
pub const HEADER_BYTES: usize = 12;
/// Most bytes of a front. The longest headers take 142: Ethernet, two VLAN tags, and IPv4 and TCP with all options.
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
pub(crate) const IPV6_BYTES: usize = 40;
/// Protocol numbers of IPv6 extension headers that are followed (RFC 8200 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const IPV4_IN_IP: u8 = 4;
pub(crate) const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
const UDP_LITE: u8 = 136;
const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Bytes of GRE's header without options.
const GRE_BYTES: usize = 4;
/// Offset of the checksum in UDP's header.
const UDP_CHECKSUM: u16 = 6;
/// Offset of the checksum in TCP's header.
pub(crate) const TCP_CHECKSUM: u16 = 16;

/// Offloads that one side of a device does, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadSupport {
    /// It completes checksums, or accepts partial ones.
    pub checksum: bool,
    /// It segments TCP over IPv4, or accepts it unsegmented.
    pub tcp4: bool,
    /// It segments TCP over IPv6, or accepts it unsegmented.
    pub tcp6: bool,
    /// It segments TCP with CWR set, or accepts it unsegmented.
    pub ecn: bool,
}

impl OffloadSupport {
    /// Returns what a driver that negotiated `features` may request of the device. A bit that depends on another has no
    /// effect without it (5.1.3.1).
    #[must_use]
    pub const fn device(features: Features) -> Self {
        let checksum = features.contains(Features::NET_CSUM);
        let tcp4 = checksum && features.contains(Features::NET_HOST_TSO4);
        let tcp6 = checksum && features.contains(Features::NET_HOST_TSO6);
        Self { checksum, tcp4, tcp6, ecn: (tcp4 || tcp6) && features.contains(Features::NET_HOST_ECN) }
    }

    /// Returns what a driver that negotiated `features` accepts from the device.
    #[must_use]
    pub const fn driver(features: Features) -> Self {
        let checksum = features.contains(Features::NET_GUEST_CSUM);
        let tcp4 = checksum && features.contains(Features::NET_GUEST_TSO4);
        let tcp6 = checksum && features.contains(Features::NET_GUEST_TSO6);
        Self { checksum, tcp4, tcp6, ecn: (tcp4 || tcp6) && features.contains(Features::NET_GUEST_ECN) }
    }

    const fn can_segment(self, v6: bool, ecn: bool) -> bool {
        (if v6 { self.tcp6 } else { self.tcp4 }) && (self.ecn || !ecn)
    }

    /// Returns whether a frame with this request can be handed over as it is.
    #[must_use]
    pub const fn accepts(self, request: &OffloadRequest) -> bool {
        match (&request.segmentation, request.checksum) {
            (Some(segmentation), _) => self.can_segment(segmentation.v6, segmentation.ecn),
            (None, Some(_)) => self.checksum,
            (None, None) => true,
        }
    }
}

/// How a frame must be cut into TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// The packet is IPv6, otherwise IPv4.
    pub v6: bool,
    /// CWR is set, and belongs to the first segment only.
    pub ecn: bool,
    /// Bytes of payload in each segment but the last, [`LEAST_MSS`] or more.
    pub mss: u16,
    /// Offset of the IP header.
    pub ip: u16,
    /// Offset of the TCP header.
    pub tcp: u16,
    /// Bytes of all headers, so the offset of the payload. Each segment has these headers.
    pub headers: u16,
}

/// The offloads that a frame requests, as checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadRequest {
    /// The checksum to complete.
    pub checksum: Option<PartialChecksum>,
    /// The segmentation to do. Never without `checksum`.
    pub segmentation: Option<Segmentation>,
}

/// Least bytes of payload of a segment. Linux takes no MSS below 48 from a peer (`TCP_MIN_SND_MSS`), and its usual option,
/// the time stamps, takes 12 of these. So no honest sender asks for less than 36. A smaller value makes the engine compute
/// headers and checksums of 60 bytes and more for fewer bytes of payload, down to one.
pub const LEAST_MSS: u16 = 36;

/// Why the request in a virtio-net header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// The header requests what was not negotiated, or does not match the frame.
    Header,
    /// The segments would have fewer bytes than [`LEAST_MSS`].
    SmallMss,
}

/// The first bytes of a frame, copied out of its sender's memory.
#[derive(Clone, Copy, Debug)]
pub struct Front<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Bytes of the frame.
    pub len: u32,
}

impl OffloadRequest {
    /// No offload.
    pub const NOTHING: Self = Self { checksum: None, segmentation: None };

    /// Returns whether a virtio-net header with these `flags` and `gso_type` requests an offload. Unknown flags are
    /// ignored (5.1.6.2.2).
    #[must_use]
    #[inline(always)]
    pub const fn any(flags: u8, gso_type: u8) -> bool {
        flags & NEEDS_CSUM != 0 || gso_type != GSO_NONE
    }

    /// Reads the request of a virtio-net header, and checks it. `support` is what was negotiated. `front` has
    /// [`MAX_FRONT`] bytes of the frame, or all.
    ///
    /// # Errors
    /// An offload was not negotiated, the frame does not match the header, or the segments are too small.
    pub fn read(header: &[u8; HEADER_BYTES], support: OffloadSupport, front: Front<'_>) -> Result<Self, BadRequest> {
        let [flags, gso_type, _, _, mss_low, mss_high, start_low, start_high, offset_low, offset_high, _, _] = *header;
        let checksum = (flags & NEEDS_CSUM != 0).then(|| PartialChecksum {
            start: u16::from_le_bytes([start_low, start_high]),
            offset: u16::from_le_bytes([offset_low, offset_high]),
        });
        let Some(c) = checksum else {
            return if gso_type == GSO_NONE { Ok(Self::NOTHING) } else { Err(BadRequest::Header) };
        };
        let packet = Packet::find(front.bytes).ok_or(BadRequest::Header)?;
        let within = c.end() as usize <= front.bytes.len() && c.end() <= front.len;
        if !support.checksum || !within || !packet.bears(c) {
            return Err(BadRequest::Header);
        }
        let (v6, ecn) = match (gso_type & !GSO_ECN, gso_type & GSO_ECN != 0) {
            (GSO_NONE, false) => return Ok(Self { checksum, segmentation: None }),
            (GSO_TCPV4, ecn) => (false, ecn),
            (GSO_TCPV6, ecn) => (true, ecn),
            _ => return Err(BadRequest::Header),
        };
        let mss = u16::from_le_bytes([mss_low, mss_high]);
        if !support.can_segment(v6, ecn) || mss == 0 {
            return Err(BadRequest::Header);
        }
        if mss < LEAST_MSS {
            return Err(BadRequest::SmallMss);
        }
        let headers = packet.tcp_headers(front, v6).ok_or(BadRequest::Header)?;
        Ok(Self {
            checksum,
            segmentation: Some(Segmentation { v6, ecn, mss, ip: packet.ip as u16, tcp: c.start, headers }),
        })
    }

    /// Returns the request with its offsets moved by `by` bytes, after a tag was added to or removed from the frame.
    #[must_use]
    pub fn shifted(&self, by: i16) -> Self {
        let on = |at: u16| at.saturating_add_signed(by);
        let checksum = self.checksum.map(|c| PartialChecksum { start: on(c.start), ..c });
        let segmentation =
            self.segmentation.map(|c| Segmentation { ip: on(c.ip), tcp: on(c.tcp), headers: on(c.headers), ..c });
        Self { checksum, segmentation }
    }

    /// Returns the bytes of a frame of `len` bytes, or of its longest segment.
    #[must_use]
    pub fn longest(&self, len: u32) -> u32 {
        self.segmentation.map_or(len, |segmentation| segmentation.longest(len))
    }

    /// Returns how many bytes of the front the request depends on: all headers of a frame to be segmented, or the bytes
    /// up to the checksum. Returns 0 if nothing is requested.
    #[must_use]
    pub const fn front(&self) -> usize {
        match (&self.segmentation, &self.checksum) {
            (Some(segmentation), _) => segmentation.headers as usize,
            (None, Some(c)) => c.end() as usize,
            (None, None) => 0,
        }
    }

    /// Returns the virtio-net header for a receiver that accepts the frame as it is ([`OffloadSupport::accepts`]), in
    /// `buffers` buffers. It contains only what was checked.
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
        if let Some(segmentation) = self.segmentation {
            header[1] =
                if segmentation.v6 { GSO_TCPV6 } else { GSO_TCPV4 } | if segmentation.ecn { GSO_ECN } else { 0 };
            [header[2], header[3]] = segmentation.headers.to_le_bytes();
            [header[4], header[5]] = segmentation.mss.to_le_bytes();
        }
        header
    }

    /// Returns the request in the form that NIC drivers take. `None`: they have no form for it.
    #[must_use]
    pub fn for_nic(&self) -> Option<nic::Offload> {
        let Some(checksum) = self.checksum else { return Some(nic::Offload::NOTHING) };
        let request = nic::Offload::of_checksum(checksum)?;
        Some(self.segmentation.map_or(request, |segmentation| request.with_mss(segmentation.mss)))
    }
}

/// Returns the virtio-net header of a frame from the wire in `buffers` buffers. `valid`: the NIC found its checksums
/// right (5.1.6.4.1).
#[must_use]
pub const fn received_header(valid: bool, buffers: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = if valid { DATA_VALID } else { 0 };
    [header[10], header[11]] = buffers.to_le_bytes();
    header
}

/// Completes a checksum in a front. `rest` is the sum of the bytes after the front.
/// Returns false, without effect, if the checksum does not lie in the front.
pub fn complete(front: &mut [u8], checksum: PartialChecksum, rest: Sum) -> bool {
    let start = usize::from(checksum.start);
    let at = start.saturating_add(checksum.offset.into());
    let Some(head) = front.get(start..) else { return false };
    let mut sum = Sum::new();
    // The checksum field holds the sum of the pseudo header.
    sum.add(head);
    sum.append(rest);
    let Some(field) = front.get_mut(at..at.saturating_add(2)) else { return false };
    field.copy_from_slice(&sum.checksum());
    true
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The IP packet in a frame.
struct Packet {
    /// Offset of the IP header.
    ip: usize,
    v6: bool,
    /// Protocol after IP's headers.
    protocol: u8,
    /// Offset of the header of `protocol`.
    at: usize,
    /// A routing header says that the destination address is not the final one (RFC 8200 4.4).
    routed: bool,
}

impl Packet {
    /// Finds the IP packet of a frame. `None`: there is none, or it is a fragment.
    fn find(bytes: &[u8]) -> Option<Self> {
        let (mut ip, mut kind) = (ETHERNET_BYTES, word(bytes, ETHERTYPE)?);
        for _ in 0..TAGS {
            if matches!(kind, VLAN | SERVICE_VLAN) {
                kind = word(bytes, ip.saturating_add(2))?;
                ip = ip.saturating_add(TAG_BYTES);
            }
        }
        let first = *bytes.get(ip)?;
        match (kind, first >> 4) {
            (IPV4, 4) => {
                let fragment = word(bytes, ip.saturating_add(6))? & 0x3fff != 0;
                let (length, protocol) = (usize::from(first & 0xf) * 4, *bytes.get(ip.saturating_add(9))?);
                let found = Self { ip, v6: false, protocol, at: ip.saturating_add(length), routed: false };
                (!fragment && length >= IPV4_BYTES).then_some(found)
            }
            (IPV6, 6) => {
                let (mut protocol, mut at, mut routed) =
                    (*bytes.get(ip.saturating_add(6))?, ip.saturating_add(IPV6_BYTES), false);
                // Each header has 8 bytes or more, so the end of the front ends this loop.
                while let HOP_BY_HOP | ROUTING | DESTINATION = protocol {
                    routed |= protocol == ROUTING;
                    protocol = *bytes.get(at)?;
                    let units = usize::from(*bytes.get(at.saturating_add(1))?).saturating_add(1);
                    at = at.saturating_add(units.saturating_mul(8));
                }
                (protocol != FRAGMENT).then_some(Self { ip, v6: true, protocol, at, routed })
            }
            _ => None,
        }
    }

    /// Returns whether a checksum may be written at this place: the packet's own checksum field, or a place in a
    /// tunnelled packet after all bytes that rules look at. Bytes that rules have checked must not be overwritten.
    fn bears(&self, checksum: PartialChecksum) -> bool {
        let (start, offset) = (usize::from(checksum.start), checksum.offset);
        match self.protocol {
            TCP => start == self.at && offset == TCP_CHECKSUM,
            UDP | UDP_LITE if start == self.at => offset == UDP_CHECKSUM,
            UDP | UDP_LITE => start >= self.at.saturating_add(UDP_BYTES),
            // Tunnels: the packet contains another packet.
            IPV4_IN_IP | IPV6_IN_IP | GRE => start >= self.at.saturating_add(GRE_BYTES),
            _ => false,
        }
    }

    /// Returns the bytes of all headers of a TCP frame that is to be segmented. `None`: it cannot be segmented.
    fn tcp_headers(&self, front: Front<'_>, v6: bool) -> Option<u16> {
        let bytes = front.bytes;
        let packet = (front.len as usize).checked_sub(self.ip)?;
        let length = if v6 {
            usize::from(word(bytes, self.ip.saturating_add(4))?).saturating_add(IPV6_BYTES)
        } else {
            word(bytes, self.ip.saturating_add(2))?.into()
        };
        let tcp_bytes = usize::from(*bytes.get(self.at.saturating_add(12))? >> 4) * 4;
        let headers = self.at.saturating_add(tcp_bytes);
        let sound = self.v6 == v6 && self.protocol == TCP && !self.routed && length == packet;
        let fits = tcp_bytes >= TCP_BYTES && headers <= bytes.len() && headers < front.len as usize;
        // Fits: less than [`MAX_FRONT`].
        (sound && fits).then_some(headers as u16)
    }
}
