//! Frames that request offloads, built with the `etherparse` crate, for the tests of offloads and of the whole
//! back-end.

use etherparse::{PacketBuilder, TcpHeader};
use proptest::prelude::*;

use super::{BadRequest, Front, HEADER_BYTES, LEAST_MSS, MAX_FRONT, OffloadRequest, OffloadSupport};

/// A device that can do everything.
pub const ALL: OffloadSupport = OffloadSupport { checksum: true, tcp4: true, tcp6: true, ecn: true };

/// RFC 1071, word by word.
pub fn slow_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What a sender's frame is made of.
#[derive(Clone, Debug)]
pub struct Sent {
    pub v6: bool,
    pub tags: usize,
    pub options: usize,
    /// Length of the hop-by-hop header of IPv6, in units of 8 bytes.
    pub extension: usize,
    pub payload: Vec<u8>,
    pub mss: u16,
    pub sequence: u32,
    pub identification: u16,
    pub flags: u8,
}

pub fn sent() -> impl Strategy<Value = Sent> {
    let sizes = prop_oneof![1usize..200, 1000usize..9000, 60_000usize..65_000];
    (
        (any::<bool>(), 0usize..3, 0usize..11, 0usize..3),
        (sizes, LEAST_MSS..9000, any::<u32>(), any::<u16>(), any::<u8>(), any::<u8>()),
    )
        .prop_map(|((v6, tags, options, extension), (n, mss, sequence, identification, flags, seed))| Sent {
            v6,
            tags,
            options: options * 4,
            extension: if v6 { extension } else { 0 },
            payload: (0..n).map(|i| (i as u8).wrapping_mul(37) ^ seed).collect(),
            // Keeps the number of segments below the limit.
            mss: mss.max((n / 100) as u16 + 1),
            sequence,
            identification,
            flags: flags & !2,
        })
}

impl Sent {
    /// The frame as a driver leaves it: with the sum of the pseudo header in place of the checksum.
    pub fn frame(&self) -> Vec<u8> {
        let packet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut tcp = TcpHeader::new(40_000, 5001, self.sequence, 4000);
        tcp.set_options_raw(&vec![1; self.options]).unwrap();
        tcp.acknowledgment_number = 77;
        let mut frame = Vec::new();
        if self.v6 {
            let step = packet.ipv6([0xfd; 16], [0xfe; 16], 64).tcp_header(tcp);
            step.write(&mut frame, &self.payload).unwrap();
        } else {
            let mut ip =
                etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
            ip.identification = self.identification;
            ip.dont_fragment = true;
            let step = packet.ip(etherparse::IpHeaders::Ipv4(ip, Default::default())).tcp_header(tcp);
            step.write(&mut frame, &self.payload).unwrap();
        }
        if self.extension != 0 {
            let bytes = self.extension * 8;
            let length = u16::from_be_bytes([frame[18], frame[19]]) + bytes as u16;
            frame[18..20].copy_from_slice(&length.to_be_bytes());
            // A PadN option fills the header.
            let mut header = vec![0; bytes];
            (header[0], header[1], header[2], header[3]) = (frame[20], self.extension as u8 - 1, 1, bytes as u8 - 4);
            frame[20] = 0;
            frame.splice(54..54, header);
        }
        for _ in 0..self.tags {
            frame.splice(12..12, [0x81, 0, 0, 5]);
        }
        let tcp = self.tcp();
        frame[tcp + 13] = self.flags;
        let ip = self.ip();
        let addresses = if self.v6 { &frame[ip + 8..ip + 40] } else { &frame[ip + 12..ip + 20] };
        let length = (frame.len() - tcp) as u32;
        let pseudo = [addresses, &length.to_be_bytes(), &[0, 6]].concat();
        frame[tcp + 16..tcp + 18].copy_from_slice(&slow_sum(&pseudo).to_be_bytes());
        frame
    }

    pub fn ip(&self) -> usize {
        14 + 4 * self.tags
    }

    pub fn tcp(&self) -> usize {
        self.ip() + if self.v6 { 40 + self.extension * 8 } else { 20 }
    }

    pub fn headers(&self) -> usize {
        self.tcp() + 20 + self.options
    }

    pub fn header(&self) -> [u8; HEADER_BYTES] {
        header(1, if self.v6 { 4 } else { 1 }, self.mss, self.tcp() as u16, 16)
    }
}

pub fn header(flags: u8, gso: u8, size: u16, start: u16, offset: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    (header[0], header[1]) = (flags, gso);
    // `hdr_len` is a hint, and is wrong here.
    header[2..4].copy_from_slice(&u16::MAX.to_le_bytes());
    for (at, value) in [(4, size), (6, start), (8, offset)] {
        header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    header
}

pub fn read(header: &[u8; HEADER_BYTES], support: OffloadSupport, frame: &[u8]) -> Result<OffloadRequest, BadRequest> {
    let bytes = &frame[..frame.len().min(MAX_FRONT)];
    OffloadRequest::read(header, support, Front { bytes, len: frame.len() as u32 })
}

pub fn sample(v6: bool) -> Sent {
    Sent {
        v6,
        tags: 0,
        options: 12,
        extension: 0,
        payload: vec![7; 3000],
        // With its headers a segment is an IP packet of 1,500 bytes.
        mss: if v6 { 1428 } else { 1448 },
        sequence: 1,
        identification: 0xffff,
        flags: 0x18,
    }
}
