//! A frame on its way: its first bytes copied out and checked, the rest still in the sender's buffers.

use memory::Span;
use memory::copy::Copier;

use crate::net::{ETHERNET_BYTES, HEADER_BYTES};
use crate::switch::Mac;

/// Bytes that are copied out, virtio-net header included: two vector registers full. What is in a frame up to TCP with
/// all its options fits, over IPv4 or IPv6, except for IPv6 extension headers.
pub const FRONT_BYTES: usize = 128;

const HDR_F_NEEDS_CSUM: u8 = 1;
const HDR_GSO_NONE: u8 = 0;
const NUM_BUFFERS: core::ops::Range<usize> = 10..12;

/// Why a frame from a guest goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Too short for Ethernet, or too long for its port.
    Length,
    /// Its virtio-net header asks for something that was not negotiated.
    Header,
    /// Its source address is a multicast one.
    Source,
}

/// The header for a frame's receivers, and the frame's first bytes as they were checked.
#[repr(align(64))]
pub struct Front {
    bytes: [u8; FRONT_BYTES],
    /// How many of them are in use.
    len: u32,
    /// Bytes of the whole frame, without virtio-net header.
    frame: u32,
}

impl Front {
    /// Room for one.
    pub const fn new() -> Self {
        Self { bytes: [0; FRONT_BYTES], len: 0, frame: 0 }
    }

    /// Copies the front out of a single buffer.
    #[inline]
    pub fn take_single(&mut self, copier: Copier, span: &Span, max: u32) -> Result<(), Bad> {
        self.size(span.len(), max)?;
        let into = self.bytes.get_mut(..self.len as usize).ok_or(Bad::Length)?;
        span.read(copier, into).ok_or(Bad::Length)?;
        self.check()
    }

    /// Copies the front out of several buffers of `total` bytes.
    pub fn take(&mut self, copier: Copier, spans: &[Span], total: u32, max: u32) -> Result<(), Bad> {
        self.size(total, max)?;
        let mut from = Cursor::new(spans);
        let mut at = 0;
        while at < self.len {
            let part = from.run(self.len - at).ok_or(Bad::Length)?;
            let end = at + part.len();
            let into = self.bytes.get_mut(at as usize..end as usize).ok_or(Bad::Length)?;
            part.read(copier, into).ok_or(Bad::Length)?;
            at = end;
        }
        self.check()
    }

    #[inline]
    fn size(&mut self, total: u32, max: u32) -> Result<(), Bad> {
        let frame = total.wrapping_sub(HEADER_BYTES as u32);
        if total < HEADER_BYTES as u32 + ETHERNET_BYTES || frame > max {
            return Err(Bad::Length);
        }
        self.frame = frame;
        self.len = total.min(FRONT_BYTES as u32);
        Ok(())
    }

    #[inline]
    fn check(&mut self) -> Result<(), Bad> {
        // No offload was offered, so the driver may ask for none (5.1.6.2.1). Unknown flags are to be ignored.
        if self.bytes[0] & HDR_F_NEEDS_CSUM != 0 || self.bytes[1] != HDR_GSO_NONE {
            return Err(Bad::Header);
        }
        // Receivers get a header of our own making: nothing of the sender's goes through. Without MRG_RXBUF the number
        // of buffers is to be 1 as well (5.1.6.4.1).
        self.bytes[..HEADER_BYTES].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        if self.source().is_multicast() { Err(Bad::Source) } else { Ok(()) }
    }

    /// Bytes of the whole frame, without virtio-net header.
    #[inline]
    pub const fn frame_len(&self) -> u32 {
        self.frame
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Mac {
        self.mac::<HEADER_BYTES>()
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Mac {
        self.mac::<{ HEADER_BYTES + 6 }>()
    }

    #[inline]
    fn mac<const AT: usize>(&self) -> Mac {
        Mac::new([
            self.bytes[AT],
            self.bytes[AT + 1],
            self.bytes[AT + 2],
            self.bytes[AT + 3],
            self.bytes[AT + 4],
            self.bytes[AT + 5],
        ])
    }

    /// The frame's first bytes as they will be sent, without virtio-net header.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(HEADER_BYTES..self.len as usize).unwrap_or(&[])
    }

    /// Writes the frame to one buffer that has room for it: the front, and the rest from the sender's `from`.
    #[inline]
    pub fn put_single(&self, copier: Copier, from: &Span, to: &Span) -> Option<()> {
        to.write(copier, self.bytes.get(..self.len as usize)?)?;
        let rest = (self.frame + HEADER_BYTES as u32) - self.len;
        if rest != 0 {
            to.copy_from(copier, self.len, &from.part(self.len, rest)?)?;
        }
        Some(())
    }

    /// Writes the frame to `count` requests' buffers that have room for it together.
    pub fn put(&mut self, copier: Copier, from: &[Span], to: &[Span], count: u16) -> Option<()> {
        self.bytes[NUM_BUFFERS].copy_from_slice(&count.to_le_bytes());
        let done = self.scatter(copier, from, to);
        self.bytes[NUM_BUFFERS].copy_from_slice(&1u16.to_le_bytes());
        done
    }

    fn scatter(&self, copier: Copier, from: &[Span], to: &[Span]) -> Option<()> {
        let mut to = Cursor::new(to);
        let mut front = self.bytes.get(..self.len as usize)?;
        while !front.is_empty() {
            let part = to.run(front.len() as u32)?;
            let (now, later) = front.split_at_checked(part.len() as usize)?;
            part.write(copier, now)?;
            front = later;
        }
        let mut from = Cursor::new(from);
        from.skip(self.len);
        let mut left = self.frame + HEADER_BYTES as u32 - self.len;
        while left != 0 {
            let n = from.contiguous().min(to.contiguous()).min(left);
            to.run(n)?.copy_from(copier, 0, &from.run(n)?)?;
            left -= n;
        }
        Some(())
    }
}

/// A position in a list of buffers.
struct Cursor<'s> {
    buffers: &'s [Span],
    offset: u32,
}

impl<'s> Cursor<'s> {
    const fn new(buffers: &'s [Span]) -> Self {
        Self { buffers, offset: 0 }
    }

    /// Bytes up to the end of this buffer.
    fn contiguous(&self) -> u32 {
        self.buffers.first().map_or(0, |b| b.len() - self.offset)
    }

    /// Goes on by up to `max` bytes (not zero) within one buffer, and gives them. None at the end.
    fn run(&mut self, max: u32) -> Option<Span> {
        let (buffer, rest) = self.buffers.split_first()?;
        let n = self.contiguous().min(max);
        if n == 0 {
            return None;
        }
        let part = buffer.part(self.offset, n)?;
        self.offset += n;
        if self.offset == buffer.len() {
            (self.buffers, self.offset) = (rest, 0);
        }
        Some(part)
    }

    fn skip(&mut self, mut n: u32) {
        while n != 0 {
            let Some(part) = self.run(n) else { return };
            n -= part.len();
        }
    }
}
