//! Parses a frame's headers as the device does, and computes the Internet checksum (data sheet 7.1.1, 7.1.11; RFC
//! 1071).

/// Ethernet type of a VLAN tag.
pub const VLAN: u16 = 0x8100;

/// Headers of a frame: offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// VLAN tag, if there is one.
    pub tag: Option<u16>,
    /// The network header, if it is IP.
    pub ip: Option<Ip>,
    /// The transport header, if the frame is no fragment.
    pub transport: Option<Transport>,
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// True: version 4. False: version 6.
    pub v4: bool,
    /// Its offset in the frame.
    pub at: usize,
    /// Its length, with options or extension headers.
    pub len: usize,
    /// It has options or extension headers.
    pub extended: bool,
    /// The end of the datagram in the frame. Bytes after it are padding.
    pub end: usize,
    /// It is a fragment.
    pub fragment: bool,
}

/// A transport protocol that the device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The protocol.
    pub protocol: Protocol,
    /// Its offset in the frame.
    pub at: usize,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

/// Parses a frame. Its VLAN tags have the Ethernet type `vlan_type`.
#[must_use]
pub fn parse(frame: &[u8], vlan_type: u16) -> Headers {
    let mut headers = Headers::default();
    let mut at = 14;
    let mut kind = u16_at(frame, 12);
    if kind == Some(vlan_type) {
        headers.tag = u16_at(frame, 14);
        kind = u16_at(frame, 16);
        at = 18;
    }
    headers.ip = match kind {
        Some(0x0800) => ipv4(frame, at),
        Some(0x86dd) => ipv6(frame, at),
        _ => None,
    };
    if let Some(ip) = headers.ip.filter(|ip| !ip.fragment) {
        let next = if ip.v4 { frame[ip.at + 9] } else { last_next_header(frame, ip) };
        let start = ip.at + ip.len;
        let protocol = match next {
            6 if start + 20 <= ip.end => Some(Protocol::Tcp),
            17 if start + 8 <= ip.end => Some(Protocol::Udp),
            132 if start + 12 <= ip.end => Some(Protocol::Sctp),
            _ => None,
        };
        headers.transport = protocol.map(|protocol| Transport { protocol, at: start });
    }
    headers
}

fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let first = *frame.get(at)?;
    let len = usize::from(first & 0xf) * 4;
    let total = usize::from(u16_at(frame, at + 2)?);
    let flags = u16_at(frame, at + 6)?;
    let end = at + total;
    let good = first >> 4 == 4 && len >= 20 && total >= len && end <= frame.len();
    good.then_some(Ip { v4: true, at, len, extended: len > 20, end, fragment: flags & 0x3fff != 0 })
}

fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    let end = at + 40 + usize::from(u16_at(frame, at + 4)?);
    if frame.get(at)? >> 4 != 6 || end > frame.len() {
        return None;
    }
    let mut ip = Ip { v4: false, at, len: 40, extended: false, end, fragment: false };
    let mut next = frame[at + 6];
    // Hop-by-hop, routing and destination options; a fragment header ends the search.
    while matches!(next, 0 | 43 | 60 | 44) {
        let header = frame.get(at + ip.len..at + ip.len + 8)?;
        ip.extended = true;
        ip.fragment |= next == 44;
        ip.len += if next == 44 { 8 } else { 8 + usize::from(header[1]) * 8 };
        next = header[0];
    }
    (at + ip.len <= end).then_some(ip)
}

fn last_next_header(frame: &[u8], ip: Ip) -> u8 {
    let (mut next, mut len) = (frame[ip.at + 6], 40);
    while len < ip.len {
        let at = ip.at + len;
        len += if next == 44 { 8 } else { 8 + usize::from(frame[at + 1]) * 8 };
        next = frame[at];
    }
    next
}

/// The one's complement sum of big-endian words and `start`, not inverted.
#[must_use]
pub fn sum(bytes: &[u8], start: u16) -> u16 {
    let words = bytes.chunks(2).map(|c| u64::from(u16::from_be_bytes([c[0], c.get(1).copied().unwrap_or(0)])));
    let mut total = words.sum::<u64>() + u64::from(start);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The sum over the pseudo header of a transport protocol. `len`: bytes of transport header and payload.
#[must_use]
pub fn pseudo_header(frame: &[u8], ip: &Ip, protocol: u8, len: usize) -> u16 {
    let addresses = if ip.v4 { ip.at + 12..ip.at + 20 } else { ip.at + 8..ip.at + 40 };
    let mut tail = (len as u32).to_be_bytes().to_vec();
    tail.extend([0, protocol]);
    sum(&tail, sum(&frame[addresses], 0))
}

/// Whether an IPv4 header's checksum is right.
#[must_use]
pub fn ip_checksum_good(frame: &[u8], ip: &Ip) -> bool {
    sum(&frame[ip.at..ip.at + ip.len], 0) == 0xffff
}

/// Whether TCP's or UDP's checksum is right. A UDP checksum of 0 (none) is reported as wrong: erratum 44.
#[must_use]
pub fn transport_checksum_good(frame: &[u8], ip: &Ip, transport: &Transport) -> bool {
    let bytes = &frame[transport.at..ip.end];
    let number = match transport.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => return crc32c_good(bytes),
    };
    if transport.protocol == Protocol::Udp && bytes[6..8] == [0, 0] {
        return false;
    }
    sum(bytes, pseudo_header(frame, ip, number, bytes.len())) == 0xffff
}

fn crc32c_good(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    let found = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    copy[8..12].fill(0);
    crc32c(&copy) == found
}

/// CRC-32C, as in SCTP (RFC 3309).
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, b| {
        (0..8).fold(crc ^ u32::from(*b), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::{Protocol, crc32c, ip_checksum_good, parse, sum};

    /// RFC 1071's own example, and an IPv4 header with a known checksum.
    #[test]
    fn the_internet_checksum_is_the_rfcs() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
        let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        let mut frame = vec![0; 14];
        frame[12] = 8;
        frame.extend(header);
        frame.resize(14 + 0x73, 0);
        let h = parse(&frame, 0x8100);
        let ip = h.ip.unwrap();
        assert!(ip_checksum_good(&frame, &ip));
        assert_eq!(h.transport.unwrap().protocol, Protocol::Udp);
        frame[24] ^= 1;
        assert!(!ip_checksum_good(&frame, &ip));
    }

    #[test]
    fn crc32c_is_the_rfcs() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn truncated_headers_are_no_ip() {
        for len in 0..60 {
            let mut frame = vec![0x45; len];
            if len > 13 {
                (frame[12], frame[13]) = (0x08, 0x00);
            }
            assert_eq!(parse(&frame, 0x8100).transport, None, "{len}");
        }
    }

    #[test]
    fn a_fragment_has_no_transport_header() {
        let mut frame = vec![0; 64];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[17] = 40;
        frame[20] = 0x20;
        frame[23] = 6;
        let h = parse(&frame, 0x8100);
        assert!(h.ip.unwrap().fragment && h.transport.is_none());
        frame[20] = 0x40;
        assert_eq!(parse(&frame, 0x8100).transport.unwrap().protocol, Protocol::Tcp);
    }
}
