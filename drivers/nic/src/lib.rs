//! What an engine wants of any NIC: the contract between it and a driver.
//!
//! The trait is small so that a second driver is a file. A driver is polled, never blocks and never interrupts. It
//! is one device with some receive and transmit queues; queues are numbered from 0 in each direction.

#![cfg_attr(not(test), no_std)]
#![allow(unsafe_code, reason = "a segment names memory that the device reads by itself")]

/// A piece of a frame that the device reads where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    address: u64,
    len: u16,
}

impl Segment {
    /// No bytes.
    pub const EMPTY: Self = Self { address: 0, len: 0 };

    /// `len` bytes at the address `address`, as the device sees it.
    ///
    /// # Safety
    /// The bytes may be sent to anyone on the wire, and stay memory of that kind until the frame's token has come back.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(address: u64, len: u16) -> Self {
        Self { address, len }
    }

    /// Address for the device.
    #[must_use]
    #[inline(always)]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> u16 {
        self.len
    }

    /// Whether it is of no length.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A checksum to be put into a frame: the Internet checksum of everything from `start` on, stored at `start + offset`,
/// where the pseudo header's sum stands already. As in a virtio-net header with NEEDS_CSUM (virtio 1.3, 5.1.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// First byte of the transport header.
    pub start: u16,
    /// Offset of the checksum in it.
    pub offset: u16,
}

impl PartialChecksum {
    /// The byte behind it in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn end(&self) -> u32 {
        self.start as u32 + self.offset as u32 + 2
    }
}

const VIRTIO_NEEDS_CSUM: u8 = 1;
const VIRTIO_GSO_NONE: u8 = 0;
const VIRTIO_GSO_TCPV4: u8 = 1;
const VIRTIO_GSO_TCPV6: u8 = 4;
const VIRTIO_GSO_ECN: u8 = 0x80;

/// What the device is to do to a frame on its way, in one word: quick to hand on and to compare.
///
/// Bits 0 to 7: the checksum's start. 8 to 14: its offset. 15: there is a checksum. 16 to 31: bytes of payload in each segment, 0 if
/// it is not to be cut. 32 to 47: the tag. 48: there is a tag. What is not there is 0, and so is the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload(u64);

impl Offload {
    /// Nothing.
    pub const NOTHING: Self = Self(0);
    const CHECKSUM: u64 = 1 << 15;
    const MSS_AT: u32 = 16;
    const TAG_AT: u32 = 32;
    const TAG: u64 = 1 << 48;

    /// A checksum. None: it starts beyond byte 255 or its offset is beyond 127, where no header has one.
    #[must_use]
    pub const fn of_checksum(checksum: PartialChecksum) -> Option<Self> {
        let PartialChecksum { start, offset } = checksum;
        if start > 0xff || offset > 0x7f { None } else { Some(Self(Self::CHECKSUM | (offset << 8 | start) as u64)) }
    }

    /// And TCP segmentation, with so many bytes of payload in each segment; 0: none. Needs a checksum too.
    #[must_use]
    pub const fn with_mss(self, mss: u16) -> Self {
        Self(self.0 & !(0xffff << Self::MSS_AT) | (mss as u64) << Self::MSS_AT)
    }

    /// And a VLAN tag to insert.
    #[must_use]
    pub const fn with_vlan(self, tag: u16) -> Self {
        Self(self.0 & !(0xffff << Self::TAG_AT) | Self::TAG | (tag as u64) << Self::TAG_AT)
    }

    /// The checksum.
    #[must_use]
    #[inline(always)]
    pub const fn checksum(self) -> Option<PartialChecksum> {
        let checksum = PartialChecksum { start: self.0 as u16 & 0xff, offset: self.0 as u16 >> 8 & 0x7f };
        if self.0 & Self::CHECKSUM != 0 { Some(checksum) } else { None }
    }

    /// Bytes of payload in each segment, if it is to be cut: not 0.
    #[must_use]
    #[inline(always)]
    pub const fn mss(self) -> Option<u16> {
        let mss = (self.0 >> Self::MSS_AT) as u16;
        if mss != 0 { Some(mss) } else { None }
    }

    /// The tag.
    #[must_use]
    #[inline(always)]
    pub const fn vlan(self) -> Option<u16> {
        if self.0 & Self::TAG != 0 { Some((self.0 >> Self::TAG_AT) as u16) } else { None }
    }

    /// Whether nothing is to be done.
    #[must_use]
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// All of it.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// What the header of a virtio-net frame asks for (virtio 1.3, 5.1.6.2). None: what it asks for does not exist, or
    /// was not asked for rightly.
    #[must_use]
    pub fn from_virtio(header: &[u8; 12]) -> Option<Self> {
        let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let checksum =
            (header[0] & VIRTIO_NEEDS_CSUM != 0).then(|| PartialChecksum { start: field(6), offset: field(8) });
        let asked = match checksum {
            Some(checksum) => Self::of_checksum(checksum)?,
            None => Self::NOTHING,
        };
        match header[1] & !VIRTIO_GSO_ECN {
            VIRTIO_GSO_NONE => Some(asked),
            VIRTIO_GSO_TCPV4 | VIRTIO_GSO_TCPV6 if checksum.is_some() && field(4) != 0 => {
                Some(asked.with_mss(field(4)))
            }
            _ => None,
        }
    }
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The frame's first bytes. They are copied, so nobody can change them any more.
    pub header: &'a [u8],
    /// The rest, to be read where it lies.
    pub segments: &'a [Segment],
    /// What to do to it.
    pub offload: Offload,
}

/// Bytes that a header may have which is written where the device will read it.
pub const HEADER_ROOM: usize = 128;

/// A frame to send that is a header, written already, and one piece behind it at most.
#[derive(Debug)]
pub struct Single<T> {
    /// Bytes of the header, 1 to [`HEADER_ROOM`].
    pub header: usize,
    /// The rest, to be read where it lies; [`Segment::EMPTY`] if the header is all.
    pub rest: Segment,
    /// What to do to it.
    pub offload: Offload,
    /// Names the owner of the memory behind `rest`.
    pub token: T,
}

/// What the device found out about a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Nothing, or nothing that can be relied on.
    Unknown,
    /// All that it looked at are right.
    Good,
    /// One is wrong.
    Bad,
}

/// A frame that has come, lent until the call returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Its bytes, without FCS, in order.
    pub pieces: &'a [&'a [u8]],
    /// Its checksums.
    pub checked: Checked,
    /// The VLAN tag that was taken out.
    pub vlan: Option<u16>,
    /// Hash of its addresses and ports; 0 if there is none.
    pub hash: u32,
}

impl Received<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|p| p.len()).sum()
    }

    /// Whether it is of no length.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a frame was not taken. Nothing of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such queue.
    Queue,
    /// The device is not running.
    NotReady,
    /// There is no link.
    LinkDown,
    /// No room: flush and reclaim, then try again.
    Full,
    /// Shorter than an Ethernet header with something in it, or longer than the device sends.
    Length,
    /// More segments than the device takes.
    Segments,
    /// The header is longer than the driver keeps.
    Header,
    /// The device cannot do what is asked for to this frame. Software can.
    Offload,
}

/// What became of a frame that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device has read all of it, to send it.
    Sent,
    /// It was dropped: the link was lost, or the device had to be reset.
    Dropped,
}

/// The wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// No link.
    #[default]
    Down,
    /// Link at so many Mb/s.
    Up(u32),
}

/// What a device can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Receive queues.
    pub receive_queues: u16,
    /// Transmit queues.
    pub transmit_queues: u16,
    /// Bytes of the longest frame, without FCS and VLAN tag, either way.
    pub max_frame: u32,
    /// Bytes of a header at most.
    pub max_header: usize,
    /// Segments of a frame at most.
    pub max_segments: usize,
    /// It computes checksums and cuts TCP into segments.
    pub offloads: bool,
}

/// A unicast address that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unicast {
    /// The address.
    pub address: [u8; 6],
    /// The receive queue by which frames for it should come, where the device chooses queues by addresses; by queue 0 if it has
    /// not so many.
    pub queue: u16,
}

/// What is to come in, besides broadcasts and what is for the device's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Unicasts to these.
    pub unicasts: &'a [Unicast],
    /// All unicasts.
    pub promiscuous: bool,
    /// Multicasts to these.
    pub groups: &'a [[u8; 6]],
    /// All multicasts.
    pub all_groups: bool,
}

/// Whether a device leaves out what is not wanted. One that tells multicasts by a hash lets in some others too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Of unicasts.
    pub unicasts: bool,
    /// Of multicasts.
    pub groups: bool,
}

/// Counters since the driver began. Counted by the device where it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Good frames that came, those that were missed among them.
    pub received: u64,
    /// Their bytes, FCS included.
    pub received_bytes: u64,
    /// Multicasts among them.
    pub received_multicast: u64,
    /// Broadcasts among them.
    pub received_broadcast: u64,
    /// Frames that left.
    pub sent: u64,
    /// Their bytes, FCS included.
    pub sent_bytes: u64,
    /// Damaged frames.
    pub crc_errors: u64,
    /// Frames shorter than 64 or longer than the longest.
    pub length_errors: u64,
    /// Frames for which the device had no room.
    pub missed: u64,
    /// Frames for which a queue had no buffer.
    pub no_buffer: u64,
    /// Frames that the device handed over and the driver could make nothing of.
    pub malformed: u64,
    /// Frames that the device's filters left out, as far as it tells.
    pub filtered: u64,
    /// Resets to get the device going again.
    pub recoveries: u64,
}

/// A polled NIC.
pub trait Nic {
    /// Names the owner of a frame's memory. The driver gives each back exactly once.
    type Token;

    /// The device's own address.
    fn address(&self) -> [u8; 6];

    /// What it can take.
    fn limits(&self) -> Limits;

    /// The link as `service` last saw it.
    fn link(&self) -> Link;

    /// Counters as `service` last read them.
    fn statistics(&self) -> Statistics;

    /// Does what has to be done now and then: bring-up, link, statistics, recovery. `now` is microseconds of a clock that
    /// never goes back. Returns true when the link has changed.
    fn service(&mut self, now: u64) -> bool;

    /// Says what is wanted. A device that cannot tell hands over more. Not on the data path: it may write a register for each
    /// address that is new or gone.
    fn let_in(&mut self, wanted: &Wanted<'_>) -> LeftOut {
        let _ = wanted;
        LeftOut::default()
    }

    /// Hands up to `budget` frames of a queue to `sink`, in order. How many.
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32;

    /// Takes a frame, to be sent at the next [`Nic::flush`].
    ///
    /// # Errors
    /// It was not taken; the token comes back at once.
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: Self::Token) -> Result<(), (Refused, Self::Token)>;

    /// Takes a frame for each of `items`, in order, to be sent at the next [`Nic::flush`], as long as there is room. `write`
    /// makes it: it puts the frame's header into the room that it is lent, and nobody can change that any more. If it gives
    /// None, that is the end.
    ///
    /// How many were taken, and the next one if it was refused: its token comes back at once. If there are fewer and nothing
    /// was refused, [`Nic::transmit`] says why.
    fn transmit_all<'a, I>(
        &mut self,
        queue: u16,
        items: &'a [I],
        mut write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<Single<Self::Token>>,
    ) -> (usize, Option<(Refused, Self::Token)>) {
        let mut room = [0; HEADER_ROOM];
        for (taken, item) in items.iter().enumerate() {
            let Some(Single { header, rest, offload, token }) = write(item, &mut room) else { return (taken, None) };
            let Some(header) = room.get(..header) else { return (taken, Some((Refused::Header, token))) };
            let segments: &[_] = if rest.is_empty() { &[] } else { &[rest] };
            let frame = Outgoing { header, segments, offload };
            if let Err(refused) = self.transmit(queue, &frame, token) {
                return (taken, Some(refused));
            }
        }
        (items.len(), None)
    }

    /// Shows the device what was taken.
    fn flush(&mut self, queue: u16);

    /// Gives back the tokens of frames that the device needs no more. How many.
    fn reclaim(&mut self, queue: u16, done: impl FnMut(Self::Token, Outcome)) -> u32;
}

#[cfg(test)]
mod tests {
    use super::{Offload, PartialChecksum};

    #[test]
    fn a_request_says_what_was_put_into_it_and_nothing_else() {
        for checksum in [None, Some((0, 0)), Some((34, 16)), Some((255, 127))] {
            let checksum = checksum.map(|(start, offset)| PartialChecksum { start, offset });
            let plain = checksum.map_or(Offload::NOTHING, |c| Offload::of_checksum(c).unwrap());
            for mss in [None, Some(1), Some(u16::MAX)] {
                let cut = plain.with_mss(7).with_mss(mss.unwrap_or(0));
                for vlan in [None, Some(0), Some(u16::MAX)] {
                    let asked = vlan.map_or(cut, |tag| cut.with_vlan(!tag).with_vlan(tag));
                    assert_eq!((asked.checksum(), asked.mss(), asked.vlan()), (checksum, mss, vlan));
                    assert_eq!(asked.is_none(), (checksum, mss, vlan) == (None, None, None));
                }
            }
        }
        for (start, offset) in [(256, 16), (34, 128)] {
            assert_eq!(Offload::of_checksum(PartialChecksum { start, offset }), None);
        }
    }

    #[test]
    fn a_virtio_header_becomes_a_request_or_is_refused() {
        let header = |flags, gso, size: u16, start: u16, offset: u16| {
            let mut h = [0; 12];
            (h[0], h[1]) = (flags, gso);
            for (at, value) in [(4, size), (6, start), (8, offset)] {
                h[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
            h
        };
        let checksum = Offload::of_checksum(PartialChecksum { start: 34, offset: 16 }).unwrap();
        assert_eq!(Offload::from_virtio(&[0; 12]), Some(Offload::NOTHING));
        assert_eq!(Offload::from_virtio(&header(1, 0, 0, 34, 16)), Some(checksum));
        assert_eq!(Offload::from_virtio(&header(1, 0x81, 1448, 34, 16)), Some(checksum.with_mss(1448)));
        for bad in [
            header(0, 1, 1448, 34, 16),
            header(1, 4, 0, 34, 16),
            header(1, 3, 100, 34, 6),
            header(1, 0x7f, 9, 9, 9),
            header(1, 0, 0, 256, 16),
            header(1, 0, 0, 34, 128),
        ] {
            assert_eq!(Offload::from_virtio(&bad), None, "{bad:?}");
        }
    }
}
