//! A frame on the slow path. Its first bytes are copied once out of the sender's memory and checked in the copy. The
//! rest stays in the sender's buffers (virtio 1.3 5.1.6).

use memory::GuestMemory;
use virtio::chain::Segment;

use crate::cursor::Cursor;
use crate::ethernet::{ETHERNET_BYTES, VLAN_BYTES};
use crate::mac::Mac;
use crate::offload;
use crate::offload::{BadRequest, HEADER_BYTES, MAX_FRONT, OffloadRequest, OffloadSupport};
use crate::policy::Refusal;
use crate::policy::headers::LOOKED_AT;
use crate::policy::vlan::{TAGGED, Tagging, VID, Vlan};
use crate::uplink::EgressFrame;

/// Bytes of a frame that are copied and checked: as many as the rules of ports look at. If a frame requests offloads,
/// all its headers are copied.
pub(crate) const FRONT_BYTES: usize = LOOKED_AT;
const _: () = assert!(FRONT_BYTES <= MAX_FRONT);
/// Bytes of room before the copy, for a tag that is added.
const ROOM: usize = VLAN_BYTES as usize;
/// Bytes of destination and source, which come before a tag.
const ADDRESSES: usize = 12;

/// Why a frame from a guest is dropped.
#[derive(Clone, Copy)]
pub(crate) enum Rejected {
    Length,
    Header,
    SmallMss,
    Source,
    Refused(Refusal),
}

/// The virtio-net header for the receivers of a frame, and the frame's first bytes as they were checked.
pub(crate) struct Front {
    bytes: [u8; ROOM + HEADER_BYTES + MAX_FRONT],
    /// Offset of the header: 0, [`ROOM`], or twice that. So no offset of this struct wraps.
    start: usize,
    /// Offset after the last byte.
    end: usize,
    /// The tag (TCI) of the frame's VLAN. After the tag was removed, it is still here.
    tag: u16,
    /// Whether the bytes contain that tag.
    tagged: bool,
}

/// A frame on the slow path.
pub(crate) struct Frame<'s> {
    /// The offloads that it requests, with the offsets as the sender gave them.
    request: OffloadRequest,
    front: Front,
    /// Bytes of the frame after `front`.
    behind: u32,
    /// The sender's buffers, from the first byte after `front` on.
    rest: Cursor<'s>,
}

impl Front {
    /// Makes a front with room for a frame's first `len` bytes, at most [`FRONT_BYTES`].
    pub(crate) fn new(len: usize) -> Self {
        Self {
            bytes: [0; ROOM + HEADER_BYTES + MAX_FRONT],
            start: ROOM,
            end: len.min(FRONT_BYTES).saturating_add(ROOM + HEADER_BYTES),
            tag: 0,
            tagged: false,
        }
    }

    /// Changes its length to the frame's first `len` bytes. Call it before the tag is changed.
    fn resize(&mut self, len: usize) {
        self.end = self.body().wrapping_add(len.min(MAX_FRONT));
    }

    /// Returns how far the bytes after the addresses have moved towards the end because a tag was added. Negative: a
    /// tag was removed.
    fn shift(&self) -> i16 {
        const MOST: i16 = ROOM as i16;
        MOST.wrapping_sub(self.start as i16)
    }

    /// Returns the offset of the frame.
    #[inline(always)]
    const fn body(&self) -> usize {
        self.start.wrapping_add(HEADER_BYTES)
    }

    /// Returns the frame's first bytes.
    pub(crate) fn frame(&self) -> &[u8] {
        self.bytes.get(self.body()..self.end).unwrap_or(&[])
    }

    /// Returns the virtio-net header and the frame's first bytes.
    pub(crate) fn all(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or(&[])
    }

    /// Returns the virtio-net header and the frame's first bytes, to write them.
    pub(crate) fn all_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or(&mut [])
    }

    /// Writes the virtio-net header.
    pub(crate) fn set_header(&mut self, header: &[u8; HEADER_BYTES]) {
        if let Some(into) = self.all_mut().first_chunk_mut() {
            *into = *header;
        }
    }

    /// Records that the bytes contain the tag of its VLAN.
    pub(crate) fn set_tag(&mut self, tag: u16) {
        (self.tag, self.tagged) = (tag, true);
    }

    /// Adds or removes the tag of its VLAN. An added tag has the priority of the tag that the frame came with.
    pub(crate) fn retag(&mut self, tagging: Tagging, vlan: Vlan) {
        match tagging {
            Tagging::Untagged if self.tagged => {
                self.move_addresses(self.start.wrapping_add(ROOM));
                self.tagged = false;
            }
            Tagging::Tagged if !self.tagged && self.start >= ROOM => {
                self.move_addresses(self.start.wrapping_sub(ROOM));
                self.set_tag(self.tag & !VID | vlan & VID);
                let at = self.body().wrapping_add(ADDRESSES);
                let [a, b] = TAGGED.to_be_bytes();
                let [c, d] = self.tag.to_be_bytes();
                if let Some(into) = self.bytes.get_mut(at..at.wrapping_add(ROOM)) {
                    into.copy_from_slice(&[a, b, c, d]);
                }
            }
            Tagging::Unchanged | Tagging::Untagged | Tagging::Tagged => {}
        }
    }

    /// Moves the header and the addresses to another offset.
    fn move_addresses(&mut self, start: usize) {
        let end = self.body().wrapping_add(ADDRESSES);
        self.bytes.copy_within(self.start..end, start);
        self.start = start;
    }

    /// Adds a tag that the NIC removed.
    pub(crate) fn restore(&mut self, tag: u16) {
        self.tag = tag;
        self.retag(Tagging::Tagged, tag & VID);
    }

    /// Returns the VLAN of its tag, if it has one.
    pub(crate) fn vlan(&self) -> Option<u16> {
        let rest = self.frame().get(ADDRESSES..).and_then(|rest| rest.first_chunk())?;
        vlan(*rest)
    }

    fn mac(&self, at: usize) -> Mac {
        let bytes = self.frame().get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(Mac::NONE, |&bytes| Mac::new(bytes))
    }

    pub(crate) fn destination(&self) -> Mac {
        self.mac(0)
    }

    pub(crate) fn source(&self) -> Mac {
        self.mac(6)
    }
}

impl<'s> Frame<'s> {
    /// Copies the first bytes of a frame out of a descriptor chain of `bytes` bytes, and checks them. `support`: the
    /// offloads that its sender may request. `max`: the longest frame, in bytes.
    pub(crate) fn take(
        memory: &GuestMemory,
        buffers: &'s [Segment],
        bytes: u32,
        support: OffloadSupport,
        max: u32,
    ) -> Result<Self, Rejected> {
        let len = bytes.checked_sub(HEADER_BYTES as u32).ok_or(Rejected::Length)?;
        if len < ETHERNET_BYTES {
            return Err(Rejected::Length);
        }
        let mut front = Front::new(len as usize);
        let mut from = Cursor::new(buffers);
        from.read(memory, front.all_mut()).ok_or(Rejected::Length)?;
        let header = *front.all().first_chunk::<HEADER_BYTES>().ok_or(Rejected::Length)?;
        let mut request = OffloadRequest::NOTHING;
        if OffloadRequest::any(header[0], header[1]) {
            let read = front.all().len();
            // Leaves room for a tag within [`MAX_FRONT`].
            front.resize((MAX_FRONT - ROOM).min(len as usize));
            from.read(memory, front.all_mut().get_mut(read..).unwrap_or(&mut [])).ok_or(Rejected::Length)?;
            let checked = offload::Front { bytes: front.frame(), len };
            request = OffloadRequest::read(&header, support, checked).map_err(|bad| match bad {
                BadRequest::Header => Rejected::Header,
                BadRequest::SmallMss => Rejected::SmallMss,
            })?;
            // A frame to be segmented has only payload after its headers.
            front.resize(match request.segmentation {
                Some(_) => request.front(),
                None => request.front().max(FRONT_BYTES.min(len as usize)),
            });
            from = Cursor::new(buffers);
            from.skip(front.all().len());
        }
        let behind = bytes.checked_sub(front.all().len() as u32).ok_or(Rejected::Length)?;
        // No tag was changed yet.
        if request.longest(len) > max {
            return Err(Rejected::Length);
        }
        Ok(Self { request, front, behind, rest: from })
    }

    /// Returns the bytes that are not in `front`.
    pub(crate) fn behind(&self) -> u32 {
        self.behind
    }

    /// Returns the bytes of the frame, without the virtio-net header.
    pub(crate) fn len(&self) -> u32 {
        self.behind.wrapping_add(self.front.frame().len() as u32)
    }

    /// Returns the first bytes as they were checked.
    pub(crate) fn front(&self) -> &Front {
        &self.front
    }

    /// Returns the first bytes, to change the tag.
    pub(crate) fn front_mut(&mut self) -> &mut Front {
        &mut self.front
    }

    /// Returns the offloads that it requests. The offsets fit the tag that the frame has now.
    pub(crate) fn request(&self) -> OffloadRequest {
        self.request.shifted(self.front.shift())
    }

    /// Returns the bytes of the frame, or of its longest segment.
    pub(crate) fn longest(&self) -> u32 {
        self.request().longest(self.len())
    }

    /// Returns the header and the frame's first bytes for a receiver that takes the frame as it is, in `buffers`
    /// buffers. The header contains only what was checked, and nothing else of the sender's header. Without MRG_RXBUF
    /// `num_buffers` is 1 too (5.1.6.4.1).
    pub(crate) fn front_for(&mut self, buffers: u16) -> &[u8] {
        let header = self.request().header(buffers);
        self.front.set_header(&header);
        self.front.all()
    }

    /// Returns the sender's buffers from the first byte that is not in `front` on, and how many bytes of the frame are
    /// there.
    pub(crate) fn rest(&self) -> (Cursor<'s>, usize) {
        (self.rest.clone(), self.behind as usize)
    }

    /// Returns the frame as an uplink gets it.
    pub(crate) fn for_egress(&self, port: usize) -> EgressFrame<'_> {
        EgressFrame {
            port,
            header: self.front.frame(),
            rest: self.rest.clone(),
            len: self.len(),
            request: self.request(),
        }
    }
}

/// Returns the VLAN of a frame whose EtherType and next two bytes these are (IEEE 802.1Q 9.6).
const fn vlan(rest: [u8; 4]) -> Option<u16> {
    let [high, low, control @ ..] = rest;
    if u16::from_be_bytes([high, low]) == TAGGED { Some(u16::from_be_bytes(control) & VID) } else { None }
}
