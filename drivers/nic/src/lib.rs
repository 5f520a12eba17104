//! The contract between an engine and a NIC's driver.
//!
//! The engine polls the driver. The driver never blocks and never interrupts. It drives one device with receive and
//! transmit queues, which are numbered from 0 in each direction.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "a segment names memory that the device reads by itself")]

/// A piece of a frame that the device reads by DMA where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    address: u64,
    len: u16,
}

impl Segment {
    /// No bytes.
    pub const EMPTY: Self = Self { address: 0, len: 0 };

    /// `len` bytes at the bus address `address`.
    ///
    /// # Safety
    /// Until the frame's token has come back, the bytes stay readable memory whose contents may go to anyone on the
    /// wire.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(address: u64, len: u16) -> Self {
        Self { address, len }
    }

    /// Bus address.
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

    /// Whether it has no bytes.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A checksum that the device stores in a frame. It is the Internet checksum of all bytes from `start` on, and its
/// place is `start + offset`, where the pseudo header's sum stands already. Like NEEDS_CSUM of virtio-net (virtio 1.3,
/// 5.1.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// First byte of the transport header.
    pub start: u16,
    /// Offset of the checksum in it.
    pub offset: u16,
}

impl PartialChecksum {
    /// Offset of the first byte after it in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn end(&self) -> u32 {
        // It does not wrap: the fields have 16 bits.
        (self.start as u32).wrapping_add(self.offset as u32).wrapping_add(2)
    }
}

const VIRTIO_NEEDS_CSUM: u8 = 1;
const VIRTIO_GSO_NONE: u8 = 0;
const VIRTIO_GSO_TCPV4: u8 = 1;
const VIRTIO_GSO_TCPV6: u8 = 4;
const VIRTIO_GSO_ECN: u8 = 0x80;

/// The offloads that a frame asks for, in one word that is quick to copy and compare.
///
/// | bits | |
/// |---|---|
/// | 0 to 7 | start of the checksum |
/// | 8 to 14 | its offset |
/// | 15 | there is a checksum |
/// | 16 to 31 | bytes of payload in each segment; 0: no segmentation |
/// | 32 to 47 | VLAN tag |
/// | 48 | there is a VLAN tag |
///
/// Fields of absent offloads are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload(u64);

impl Offload {
    /// No offload.
    pub const NOTHING: Self = Self(0);
    const CHECKSUM: u64 = 1 << 15;
    const MSS_AT: u32 = 16;
    const TAG_AT: u32 = 32;
    const TAG: u64 = 1 << 48;

    /// A checksum. `None`: its start is beyond byte 255 or its offset beyond 127, where no header has one.
    #[must_use]
    pub const fn of_checksum(checksum: PartialChecksum) -> Option<Self> {
        let PartialChecksum { start, offset } = checksum;
        if start > 0xff || offset > 0x7f { None } else { Some(Self(Self::CHECKSUM | (offset << 8 | start) as u64)) }
    }

    /// Adds TCP segmentation with `mss` bytes of payload in each segment; 0: none. Needs a checksum too.
    #[must_use]
    pub const fn with_mss(self, mss: u16) -> Self {
        Self(self.0 & !(0xffff << Self::MSS_AT) | (mss as u64) << Self::MSS_AT)
    }

    /// Adds the insertion of a VLAN tag.
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

    /// Bytes of payload in each segment, not 0. `None`: no segmentation.
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

    /// Whether there is no offload.
    #[must_use]
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The word.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The offloads that a virtio-net header asks for (virtio 1.3, 5.1.6.2). `None`: the header asks for an unknown
    /// offload, or contradicts itself.
    #[must_use]
    pub fn from_virtio(header: &[u8; 12]) -> Option<Self> {
        let size = u16::from_le_bytes([header[4], header[5]]);
        let start = u16::from_le_bytes([header[6], header[7]]);
        let offset = u16::from_le_bytes([header[8], header[9]]);
        let checksum = (header[0] & VIRTIO_NEEDS_CSUM != 0).then_some(PartialChecksum { start, offset });
        let asked = match checksum {
            Some(checksum) => Self::of_checksum(checksum)?,
            None => Self::NOTHING,
        };
        match header[1] & !VIRTIO_GSO_ECN {
            VIRTIO_GSO_NONE => Some(asked),
            VIRTIO_GSO_TCPV4 | VIRTIO_GSO_TCPV6 if checksum.is_some() && size != 0 => Some(asked.with_mss(size)),
            _ => None,
        }
    }
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The frame's first bytes. The driver copies them, so that a guest cannot change them any more.
    pub header: &'a [u8],
    /// The rest. The device reads it where it lies.
    pub segments: &'a [Segment],
    /// Offloads.
    pub offload: Offload,
}

/// Most bytes of a header that `write` of [`Nic::transmit_all`] puts where the device reads it.
pub const HEADER_ROOM: usize = 128;

/// A frame to send: a header that was written already, and one segment at most.
#[derive(Debug)]
pub struct Single<T> {
    /// Bytes of the header, 1 to [`HEADER_ROOM`].
    pub header: usize,
    /// The rest. The device reads it where it lies. [`Segment::EMPTY`] if there is none.
    pub rest: Segment,
    /// Offloads.
    pub offload: Offload,
    /// Names the owner of the memory of `rest`.
    pub token: T,
}

/// The device's check of a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It checked none, or its answer is not reliable.
    Unknown,
    /// All that it checked are right.
    Good,
    /// One is wrong.
    Bad,
}

/// A received frame, borrowed until the call returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Its bytes, without FCS, in order.
    pub pieces: &'a [&'a [u8]],
    /// Result of the device's checksum check.
    pub checked: Checked,
    /// The VLAN tag, if the device removed it from the frame.
    pub vlan: Option<u16>,
    /// RSS hash of its addresses and ports; 0 if there is none.
    pub hash: u32,
}

impl Received<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|p| p.len()).sum()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a frame was not taken. The driver keeps nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such queue.
    Queue,
    /// The device is not running.
    NotReady,
    /// There is no link.
    LinkDown,
    /// The queue is full: flush and reclaim, then try again.
    Full,
    /// It has no payload after the Ethernet header, or is longer than the device sends.
    Length,
    /// More segments than the device takes.
    Segments,
    /// The header is longer than the driver's copy may be.
    Header,
    /// The device cannot do the offload for this frame. Software can.
    Offload,
}

/// How the driver finished a frame that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device has read all of it and sends it.
    Sent,
    /// It was dropped, because the link was lost or the device was reset.
    Dropped,
}

/// The link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// No link.
    #[default]
    Down,
    /// The link is up, at that many Mb/s.
    Up(u32),
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Receive queues.
    pub receive_queues: u16,
    /// Transmit queues.
    pub transmit_queues: u16,
    /// Bytes of the longest frame in either direction, without FCS and VLAN tag.
    pub max_frame: u32,
    /// Most bytes of a header.
    pub max_header: usize,
    /// Most segments of a frame.
    pub max_segments: usize,
    /// It computes checksums and segments TCP.
    pub offloads: bool,
}

/// A unicast address in the receive filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unicast {
    /// The address.
    pub address: [u8; 6],
    /// The receive queue of its frames, if the device chooses queues by address. Queue 0 is used if there are not so
    /// many.
    pub queue: u16,
}

/// The frames that a device shall accept, besides broadcasts and those for its own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveFilter<'a> {
    /// Unicasts to these addresses.
    pub unicasts: &'a [Unicast],
    /// All unicasts.
    pub promiscuous: bool,
    /// Multicasts to these addresses.
    pub groups: &'a [[u8; 6]],
    /// All multicasts.
    pub all_groups: bool,
}

/// Whether a device drops all frames that the filter does not name. A device that filters multicasts by a hash accepts
/// some others too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// It drops other unicasts. False: it is promiscuous.
    pub unicasts: bool,
    /// It drops other multicasts. False: it accepts all of them.
    pub groups: bool,
}

/// Counters since the driver started. The device counts what it can; the driver counts the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Good frames that arrived, including missed ones.
    pub received: u64,
    /// Their bytes, FCS included.
    pub received_bytes: u64,
    /// Multicasts among them.
    pub received_multicast: u64,
    /// Broadcasts among them.
    pub received_broadcast: u64,
    /// Frames sent.
    pub sent: u64,
    /// Their bytes, FCS included.
    pub sent_bytes: u64,
    /// Frames with a wrong FCS.
    pub crc_errors: u64,
    /// Frames shorter than 64 or longer than the longest.
    pub length_errors: u64,
    /// Frames for which the device's packet buffer had no room.
    pub missed: u64,
    /// Frames for which a queue had no buffer.
    pub no_buffer: u64,
    /// Frames whose descriptors made no sense.
    pub malformed: u64,
    /// Frames that the device's filters dropped, as far as it tells.
    pub filtered: u64,
    /// Resets of a hung device.
    pub recoveries: u64,
}

/// What a driver has to say of the place where the cable goes in. It is written as a text for the operator: the module that
/// is there, and what keeps the link down. Nothing that is plugged in can bring a control character into it.
pub trait Port: core::fmt::Display {
    /// Counts how often the text has changed.
    fn changes(&self) -> u32;

    /// Whether something other than the wire and its other end keeps the link down.
    fn is_obstructed(&self) -> bool;
}

/// A polled NIC.
pub trait Nic {
    /// Names the owner of a frame's memory. The driver gives each token back exactly once.
    type Token;

    /// The device's own address.
    fn address(&self) -> [u8; 6];

    /// The device's limits.
    fn limits(&self) -> Limits;

    /// The link, as of the last `service`.
    fn link(&self) -> Link;

    /// The counters, as of the last `service`.
    fn statistics(&self) -> Statistics;

    /// Does the periodic work: bring-up, link, statistics, recovery. `now`: microseconds of a clock that never goes
    /// back. Returns whether the link has changed.
    fn service(&mut self, now: u64) -> bool;

    /// What there is to say of the place where the cable goes in, as of the last `service`. `None`: nothing.
    fn port(&self) -> Option<&dyn Port> {
        None
    }

    /// Blinks the light of the port, so that a person finds it, until that time of `service`'s clock. Does nothing if it
    /// has no light that can.
    fn blink(&mut self, until: u64) {
        let _ = until;
    }

    /// Sets the receive filter. A device without filters accepts all frames. Not for the data path: it may write a
    /// register for each address that is new or gone. Returns what the device filters.
    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        let _ = wanted;
        Filtered::default()
    }

    /// Gives up to `budget` received frames of a queue to `sink`, in order. Returns how many.
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32;

    /// Takes a frame. The next [`Nic::flush`] sends it.
    ///
    /// # Errors
    /// The frame was not taken. The token comes back at once.
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: Self::Token) -> Result<(), (Refused, Self::Token)>;

    /// Takes a frame for each of `items`, in order, as long as there is room. The next [`Nic::flush`] sends them.
    /// `write` makes the frame: it writes the header to the room that it gets, where no guest can change it. If `write`
    /// returns `None`, no more frames are taken.
    ///
    /// Returns how many were taken. If the next frame was refused, also returns the reason and its token. If fewer than
    /// all were taken and none was refused, [`Nic::transmit`] says why.
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

    /// Gives the device the frames that were taken.
    fn flush(&mut self, queue: u16);

    /// Gives back the tokens of frames that the device has finished. Returns how many.
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
