//! Cuts one TCP frame into segments (virtio 1.3 5.1.6.2; RFC 9293 3.8, 3168 6.1.2).
//!
//! Each segment has the headers of the frame, with its own length, identification, sequence number, flags and
//! checksums. FIN and PSH are set in the last segment only, CWR in the first only.

use nic::PartialChecksum;

use crate::offload::sum::Sum;
use crate::offload::{IPV6_BYTES, MAX_FRONT, Segmentation, TCP, TCP_CHECKSUM};

/// Most segments of one frame. This bounds the cost of one request. 128 are enough for 64 KiB with 512 bytes of payload
/// each. If a frame needs more, TCP sends the rest again.
pub const MAX_SEGMENTS: u32 = 128;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// One segment. Its headers are in the buffer that was given to [`Segmentation::segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its payload in the frame.
    pub at: u32,
    /// Bytes of its payload.
    pub len: u32,
}

impl Segmentation {
    /// Returns the number of segments of a frame of `len` bytes, at most [`MAX_SEGMENTS`].
    #[must_use]
    pub fn segments(&self, len: u32) -> u32 {
        len.saturating_sub(u32::from(self.headers)).div_ceil(u32::from(self.mss.max(1))).min(MAX_SEGMENTS)
    }

    /// Returns the bytes of the longest segment of a frame of `len` bytes.
    #[must_use]
    pub fn longest(&self, len: u32) -> u32 {
        len.min(u32::from(self.headers).saturating_add(self.mss.into()))
    }

    /// Returns the checksum that must still be completed in each segment.
    #[must_use]
    pub const fn checksum(&self) -> PartialChecksum {
        PartialChecksum { start: self.tcp, offset: TCP_CHECKSUM }
    }

    /// Makes the headers of segment `number` of a frame of `len` bytes from the checked `front`. The TCP checksum field
    /// gets the sum of the pseudo header, as in virtio and Linux. `None`: there is no such segment, or `front` is too
    /// short.
    #[must_use]
    pub fn segment(&self, front: &[u8], len: u32, number: u32, into: &mut [u8; MAX_FRONT]) -> Option<Piece> {
        let headers = usize::from(self.headers);
        let (ip, tcp) = (usize::from(self.ip), usize::from(self.tcp));
        let payload = len.checked_sub(u32::from(self.headers))?;
        let offset = number.checked_mul(u32::from(self.mss))?;
        let left = payload.checked_sub(offset).filter(|&left| left != 0)?;
        let size = left.min(u32::from(self.mss));
        let last = size == left;
        let out = into.get_mut(..headers)?;
        out.copy_from_slice(front.get(..headers)?);

        let packet = headers.checked_sub(ip)?.saturating_add(size as usize);
        if self.v6 {
            put(out, ip.saturating_add(4), u16::try_from(packet.checked_sub(IPV6_BYTES)?).ok()?)?;
        } else {
            let identification = get(out, ip.saturating_add(4))?.wrapping_add(number as u16);
            put(out, ip.saturating_add(2), u16::try_from(packet).ok()?)?;
            put(out, ip.saturating_add(4), identification)?;
            put(out, ip.saturating_add(10), 0)?;
            let mut sum = Sum::new();
            sum.add(out.get(ip..tcp)?);
            // 0 stays 0: no header has the checksum 0xffff (RFC 1624 3).
            put(out, ip.saturating_add(10), !u16::from_be_bytes(sum.field()))?;
        }

        let sequence: &mut [u8; 4] = out.get_mut(tcp.saturating_add(4)..)?.first_chunk_mut()?;
        *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset).to_be_bytes();
        let flags = out.get_mut(tcp.saturating_add(13))?;
        *flags &= !(if last { 0 } else { FIN | PSH } | if number == 0 { 0 } else { CWR });

        // The pseudo header: addresses, length and protocol (RFC 9293 3.1, RFC 8200 8.1).
        let mut sum = Sum::new();
        let (from, to) = if self.v6 { (8, 40) } else { (12, 20) };
        sum.add(out.get(ip.saturating_add(from)..ip.saturating_add(to))?);
        sum.add_u16(u16::try_from(headers.checked_sub(tcp)?.saturating_add(size as usize)).ok()?);
        sum.add_u16(u16::from(TCP));
        let at = tcp.saturating_add(TCP_CHECKSUM.into());
        out.get_mut(at..at.saturating_add(2))?.copy_from_slice(&sum.field());
        // `offset` is less than `payload`, which is `len` less these headers.
        Some(Piece { at: offset.wrapping_add(self.headers.into()), len: size })
    }
}

fn get(bytes: &[u8], at: usize) -> Option<u16> {
    super::word(bytes, at)
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at.saturating_add(2))?.copy_from_slice(&value.to_be_bytes());
    Some(())
}
