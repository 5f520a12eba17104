//! The fast way out of the machine: a run of frames with the same addresses, of which no guest has the destination. They are of
//! the usual form, as [`super::stream`] has it, or ask for a checksum or segmentation besides. They go to the NIC by one call. Each
//! one's first bytes are copied to where the NIC will read them, what it asks for is checked in that copy, and the rest stays in
//! the guest's buffers, which come back when the NIC is done. What the NIC refuses, what is asked of one that does no offloads, and
//! every frame that rules look at, goes the general way.

#![allow(unsafe_code, reason = "tells the NIC where a guest's frame lies")]

use heapless::Vec;
use memory::copy::Copier;
use memory::span::{Marked, Piece};
use nic::{HEADER_ROOM, Nic, Segment};

use super::HEADER_BYTES;
use super::flow::Addresses;
use super::forward::Bridge;
use super::stream::{HEADER, Offered, RUN, SPLIT, Sending, Single};
use crate::offload::{Asked, Can, Front};
use crate::policy::vlan::{Form, PLAIN, Vlan};
use crate::queue::Entries;
use crate::schedule::{Portion, Served};
use crate::stats::PortCounters;
use crate::uplink::{Held, MAX_PIECE, Uplink, Way};

/// Bytes of a frame that are copied: Ethernet, IPv4 and TCP.
const COPIED: usize = 54;
/// Where a frame's mark says what is asked for: 0 is nothing, 1 the first of the requests.
const REQUEST: u32 = SPLIT.trailing_zeros() + 1;

/// Where frames come from.
pub(super) struct Sender<'c> {
    pub port: usize,
    pub counters: &'c PortCounters,
    /// What its driver may ask for.
    pub can: Can,
}

/// What frames of a run ask for.
struct Request {
    /// What of a virtio-net header says so.
    header: [u8; HEADER_BYTES],
    /// The same for the NIC, if the frames bear it out.
    offload: nic::Offload,
}

/// The number of what a header asks for: 0 is nothing. None: it does not exist, or there is no room.
fn request(requests: &mut Vec<Request, RUN>, single: &Single<'_>) -> Option<u32> {
    if !single.asks() {
        return Some(0);
    }
    let mut header = single.header;
    // The length of the headers is not read (5.1.6.2.2), nor is the number of buffers.
    (header[2], header[3], header[10], header[11]) = (0, 0, 0, 0);
    let known = requests.iter().position(|request| request.header == header);
    let at = match known {
        Some(at) => at,
        None => {
            let offload = nic::Offload::from_virtio(&header)?;
            requests.push(Request { header, offload }).ok()?;
            requests.len() - 1
        }
    };
    Some(at as u32 + 1)
}

impl Bridge {
    /// How frames of a VLAN leave from a port. None: they do not, or there is no link.
    pub(super) fn way<N: Nic<Token = Held>>(
        &self,
        uplinks: &[Option<Uplink<N>>],
        port: usize,
        vlan: Vlan,
    ) -> Option<Way> {
        let (uplink, form) = self.exits.find(port, vlan)?;
        let is_up = uplinks.get(uplink)?.as_ref()?.is_up();
        is_up.then_some(Way { uplink, form, vlan })
    }

    /// The uplink by which frames with these addresses, for outside, leave by runs. None: they do not.
    #[cold]
    #[inline(never)]
    pub(super) fn leads_out<'u, N: Nic<Token = Held>>(
        &self,
        uplinks: &'u mut [Option<Uplink<N>>],
        port: usize,
        addresses: Addresses,
    ) -> Option<&'u mut Uplink<N>> {
        // Frames without a tag, and such as leave as they are.
        let way = self.way(uplinks, port, PLAIN).filter(|way| way.form != Form::Tagged)?;
        let uplink = uplinks.get_mut(way.uplink)?.as_mut()?;
        let source = addresses.source();
        let alone = self.rules.untagged(port) == Some(PLAIN) && self.rules.reads(port, port).is_empty();
        let goes = alone
            && uplink.lets_run()
            && self.rules.judge(port, port, PLAIN).source(source).stopped.is_none()
            && !source.is_multicast()
            // A frame to its sender's own address goes nowhere.
            && addresses.destination() != source;
        goes.then_some(uplink)
    }

    /// Sends frames out from the beginning of a queue, up to a portion. What it took: nothing if the first is not for this way.
    #[inline(never)]
    pub(super) fn leave_by_run<'d, N: Nic<Token = Held>, L: Entries<'d>>(
        &mut self,
        uplink: &mut Uplink<N>,
        Sender { port, counters, can }: Sender<'_>,
        mut sending: Sending<'_, 'd, L>,
        first: Single<'d>,
        portion: &Portion,
        now: u64,
    ) -> Option<Served> {
        let most = sending.look.len().min(RUN);
        let (addresses, max, offloads) = (first.addresses, sending.max, uplink.does_offloads());
        let (mut frames, mut requests) = (Vec::<(Offered<'d>, u32), RUN>::new(), Vec::<Request, RUN>::new());
        let (mut next, mut total) = (Some(first), 0);
        while let Some(single) = next.filter(|single| single.addresses == addresses && (offloads || !single.asks())) {
            let Some(request) = request(&mut requests, &single) else { break };
            let frame = Marked::new(single.frame.piece(), single.frame.mark() | request << REQUEST);
            // It has room for as many.
            let _ = frames.push((frame, single.bytes));
            total += u64::from(single.bytes);
            next = if frames.len() < most && total < portion.bytes { sending.frame(frames.len()) } else { None };
        }
        let Sending { tx, tails, .. } = sending;
        let (copier, mut ends) = (tx.copier(), tails.iter());
        let (taken, refused) = uplink.send_run(port, &frames, |(frame, bytes), room| {
            let (body, split) = (frame.piece(), frame.mark() & SPLIT != 0);
            let request = (frame.mark() >> REQUEST).checked_sub(1).map(|n| requests.get(n as usize));
            let long = matches!(request, Some(Some(request)) if reaches(request.offload) > COPIED);
            let (header, rest) = match (split || long, body.first_and_from::<COPIED, COPIED>()) {
                (false, Some((first, rest))) => {
                    first.read(room.first_chunk_mut()?);
                    (COPIED, rest)
                }
                _ => copy_all(body, split, &mut ends, copier, room)?,
            };
            // What was checked is what is sent.
            *room.first_chunk_mut()? = addresses.bytes();
            let offload = match request {
                None => nic::Offload::NOTHING,
                Some(request) => {
                    checked(request?, can, Front { bytes: room.get(..header)?, len: bytes - HEADER }, max)?
                }
            };
            let len = u16::try_from(rest.len()).ok().filter(|&len| usize::from(len) <= MAX_PIECE)?;
            // SAFETY: the bytes are the guest's own, which it asked to be sent; they stay its memory until the token is back, because
            // neither a reset nor a detachment of its device is done while `Uplink::holds` says so.
            let rest = unsafe { Segment::new(rest.address() as u64, len) };
            // Last, as it is not undone.
            let token = tx.hold(frame.mark() as u16)?;
            Some(nic::Single { header, rest, offload, token: Held::whole(port, token) })
        });
        if let Some(token) = refused.and_then(Held::into_whole) {
            tx.rewind(token);
        }
        tx.finish_held();
        if taken == 0 {
            return None;
        }
        self.switch.learn(addresses.source(), PLAIN, port, now);
        let bytes = frames.iter().take(taken).map(|&(_, bytes)| u64::from(bytes)).sum::<u64>();
        let payload = bytes - u64::from(HEADER) * taken as u64;
        counters.tx_packets.add(taken as u64);
        counters.tx_bytes.add(payload);
        uplink.counters().tx_bytes.add(payload);
        Some(Served { requests: taken as u32, bytes })
    }
}

/// Bytes of a frame that have to be copied, if it asks for that: up to the checksum's end, or as many as there is room for.
const fn reaches(offload: nic::Offload) -> usize {
    match (offload.mss(), offload.checksum()) {
        (None, Some(checksum)) => checksum.end() as usize,
        _ => HEADER_ROOM,
    }
}

/// What the NIC is to do to a frame with this front, if that bears it out and is not too long.
fn checked(request: &Request, can: Can, front: Front<'_>, max: u32) -> Option<nic::Offload> {
    let asked = Asked::read(&request.header, can, front).ok()?;
    let longest = asked.cut.map_or(front.len, |cut| cut.longest(front.len));
    (asked.for_nic() == Some(request.offload) && longest <= max).then_some(request.offload)
}

/// Copies all of the first piece of a frame that is `split`, or as much as there is room for of another. How many bytes, and the
/// rest. None: it is too long.
#[cold]
#[inline(never)]
fn copy_all<'d>(
    body: Piece<'d>,
    split: bool,
    ends: &mut core::slice::Iter<'_, Piece<'d>>,
    copier: Copier,
    room: &mut [u8; HEADER_ROOM],
) -> Option<(usize, Piece<'d>)> {
    if split && body.len() as usize > HEADER_ROOM {
        return None;
    }
    let header = body.read(copier, room);
    let rest = if split { *ends.next()? } else { body.skip(header as u32)? };
    Some((header, rest))
}
