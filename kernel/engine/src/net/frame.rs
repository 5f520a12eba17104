//! A frame on its way: its headers, which are copied once out of the sender's memory and checked in that copy, and where
//! the rest lies (virtio 1.3 5.1.6).

use memory::GuestMemory;

use super::buffers::Cursor;
use super::{ETHERNET_BYTES, HEADER_BYTES, VLAN_BYTES};
use crate::chain::Segment;
use crate::offload::{self, Asked, Can, MAX_FRONT};
use crate::policy::Refusal;
use crate::policy::headers::LOOKED_AT;
use crate::policy::vlan::{Form, TAGGED, VID, Vlan};
use crate::switch::Mac;
use crate::uplink::Leaving;

/// Bytes of a frame that are copied out and checked: what the rules of ports look at. Of one that asks for offloads there are as
/// many as it takes.
pub(super) const FRONT_BYTES: usize = LOOKED_AT;
const _: () = assert!(FRONT_BYTES <= MAX_FRONT);
/// Room before it for a tag that is put in.
const ROOM: usize = VLAN_BYTES as usize;
/// Destination and source, which stand before a tag.
const ADDRESSES: usize = 12;

/// Why a frame from a guest goes nowhere.
pub(super) enum Bad {
    Length,
    Header,
    Source,
    Refused(Refusal),
}

/// The header for a frame's receivers, and the frame's first bytes as they were checked.
pub(super) struct Front {
    bytes: [u8; ROOM + HEADER_BYTES + MAX_FRONT],
    /// Where the header begins.
    start: usize,
    /// Behind the last byte.
    end: usize,
    /// The tag of its VLAN (TCI), if that is not in it; or the one that it had.
    tag: u16,
    /// Whether that tag is in it.
    tagged: bool,
}

/// A frame on its way.
pub(super) struct Frame<'s> {
    /// What is to be done to it, as it was sent.
    asked: Asked,
    front: Front,
    /// Bytes of the frame that lie behind the front.
    behind: u32,
    /// The sender's buffers from there on.
    rest: Cursor<'s>,
}

impl Front {
    /// With room for a frame's first `len` bytes, cut to what is looked at.
    pub(super) fn new(len: usize) -> Self {
        Self {
            bytes: [0; ROOM + HEADER_BYTES + MAX_FRONT],
            start: ROOM,
            end: ROOM + HEADER_BYTES + len.min(FRONT_BYTES),
            tag: 0,
            tagged: false,
        }
    }

    /// Makes it end behind the frame's first `len` bytes, before its form was changed.
    fn resize(&mut self, len: usize) {
        self.end = self.start + HEADER_BYTES + len.min(MAX_FRONT);
    }

    /// By how many bytes what follows the addresses stands farther behind than when it came, because of a tag.
    fn moved(&self) -> i16 {
        ROOM as i16 - self.start as i16
    }

    /// The frame's first bytes.
    pub(super) fn frame(&self) -> &[u8] {
        self.bytes.get(self.start + HEADER_BYTES..self.end).unwrap_or(&[])
    }

    /// The same with the virtio-net header before them.
    pub(super) fn all(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or(&[])
    }

    /// The same, to be filled.
    pub(super) fn all_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or(&mut [])
    }

    /// Writes the virtio-net header.
    pub(super) fn set_header(&mut self, header: &[u8; HEADER_BYTES]) {
        if let Some(into) = self.all_mut().first_chunk_mut() {
            *into = *header;
        }
    }

    /// Says that it bears the tag of its VLAN.
    pub(super) fn bears(&mut self, tag: u16) {
        (self.tag, self.tagged) = (tag, true);
    }

    /// Puts the tag of its VLAN in or takes it out, as this form wants it. A tag that is put in has the priority of the one
    /// that was there.
    pub(super) fn shape(&mut self, form: Form, vlan: Vlan) {
        match form {
            Form::Untagged if self.tagged => {
                self.bytes.copy_within(self.start..self.start + HEADER_BYTES + ADDRESSES, self.start + ROOM);
                self.start += ROOM;
                self.tagged = false;
            }
            Form::Tagged if !self.tagged && self.start >= ROOM => {
                self.bytes.copy_within(self.start..self.start + HEADER_BYTES + ADDRESSES, self.start - ROOM);
                self.start -= ROOM;
                self.bears(self.tag & !VID | vlan & VID);
                let at = self.start + HEADER_BYTES + ADDRESSES;
                let [a, b] = TAGGED.to_be_bytes();
                let [c, d] = self.tag.to_be_bytes();
                if let Some(into) = self.bytes.get_mut(at..at + ROOM) {
                    into.copy_from_slice(&[a, b, c, d]);
                }
            }
            Form::AsItIs | Form::Untagged | Form::Tagged => {}
        }
    }

    /// Puts a tag back that was taken out of it.
    pub(super) fn restore(&mut self, tag: u16) {
        self.tag = tag;
        self.shape(Form::Tagged, tag & VID);
    }

    /// The VLAN of its tag, if it bears one.
    pub(super) fn vlan(&self) -> Option<u16> {
        let rest = self.frame().get(ADDRESSES..).and_then(|rest| rest.first_chunk())?;
        vlan(*rest)
    }

    fn mac(&self, at: usize) -> Mac {
        let bytes = self.frame().get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(Mac::NONE, |&bytes| Mac::new(bytes))
    }

    pub(super) fn destination(&self) -> Mac {
        self.mac(0)
    }

    pub(super) fn source(&self) -> Mac {
        self.mac(6)
    }
}

impl<'s> Frame<'s> {
    /// Copies the headers out of a sent chain of `bytes` bytes, and checks them. `can`: the offloads that its sender may ask
    /// for; `max`: bytes of the longest frame.
    pub(super) fn take(
        memory: &GuestMemory,
        buffers: &'s [Segment],
        bytes: u32,
        can: Can,
        max: u32,
    ) -> Result<Self, Bad> {
        let len = bytes.checked_sub(HEADER_BYTES as u32).ok_or(Bad::Length)?;
        if len < ETHERNET_BYTES {
            return Err(Bad::Length);
        }
        let mut front = Front::new(len as usize);
        let mut from = Cursor::new(buffers);
        from.read(memory, front.all_mut()).ok_or(Bad::Length)?;
        let header = *front.all().first_chunk::<HEADER_BYTES>().ok_or(Bad::Length)?;
        let mut asked = Asked::NOTHING;
        if Asked::anything(header[0], header[1]) {
            let read = front.all().len();
            // With a tag put in it is still no longer than a front may be.
            front.resize((MAX_FRONT - ROOM).min(len as usize));
            from.read(memory, front.all_mut().get_mut(read..).unwrap_or(&mut [])).ok_or(Bad::Length)?;
            let checked = offload::Front { bytes: front.frame(), len };
            asked = Asked::read(&header, can, checked).map_err(|_| Bad::Header)?;
            // Behind its headers a frame that is to be cut has payload only.
            front.resize(match asked.cut {
                Some(_) => asked.front(),
                None => asked.front().max(FRONT_BYTES.min(len as usize)),
            });
            from = Cursor::new(buffers);
            from.skip(front.all().len());
        }
        let behind = bytes - front.all().len() as u32;
        let frame = Self { asked, front, behind, rest: from };
        if frame.longest() > max { Err(Bad::Length) } else { Ok(frame) }
    }

    /// Bytes of it that are not in the front.
    pub(super) fn behind(&self) -> u32 {
        self.behind
    }

    /// Bytes of the frame, without virtio-net header.
    pub(super) fn len(&self) -> u32 {
        self.front.frame().len() as u32 + self.behind
    }

    /// The frame's first bytes as they were checked.
    pub(super) fn front(&self) -> &Front {
        &self.front
    }

    /// The same, to be given the form in which the frame leaves.
    pub(super) fn front_mut(&mut self) -> &mut Front {
        &mut self.front
    }

    /// What is to be done to it, in the form that it has now.
    pub(super) fn asked(&self) -> Asked {
        self.asked.moved(self.front.moved())
    }

    /// Bytes of the longest frame that it stands for.
    pub(super) fn longest(&self) -> u32 {
        self.asked().cut.map_or(self.len(), |cut| cut.longest(self.len()))
    }

    /// The header for a receiver that takes the frame as it is and puts it into `buffers` buffers, and behind it the frame's
    /// first bytes. Nothing of the sender's header goes through but what was checked. Without MRG_RXBUF `num_buffers` is to be
    /// 1 as well (5.1.6.4.1).
    pub(super) fn front_for(&mut self, buffers: u16) -> &[u8] {
        let header = self.asked().header(buffers);
        self.front.set_header(&header);
        self.front.all()
    }

    /// The sender's buffers from the first byte on that is not in the front, and how many bytes of the frame are there.
    pub(super) fn rest(&self) -> (Cursor<'s>, usize) {
        (self.rest.clone(), self.behind as usize)
    }

    /// The frame for the wire: what was checked, and where the rest lies.
    pub(super) fn leaving(&self, port: usize) -> Leaving<'_> {
        Leaving { port, header: self.front.frame(), rest: self.rest.clone(), len: self.len(), asked: self.asked() }
    }
}

/// The VLAN of a frame whose type, and what follows it, is this (IEEE 802.1Q 9.6).
const fn vlan(rest: [u8; 4]) -> Option<u16> {
    let [high, low, control @ ..] = rest;
    if u16::from_be_bytes([high, low]) == TAGGED { Some(u16::from_be_bytes(control) & VID) } else { None }
}
