//! Fast path from a guest to an uplink. It takes a batch of frames with the same addresses whose destination is not a
//! guest, and hands the whole batch to the NIC in one call.
//!
//! - The frames qualify as in [`super::fast`], and may also request a checksum or segmentation, if the NIC does
//!   offloads.
//! - The first bytes of each frame are copied to where the NIC reads them. The addresses and the offload request are
//!   checked in that copy.
//! - The rest of each frame stays in the guest's buffers. The request is held until the NIC has sent the frame.
//! - These frames take the slow path: a frame that the NIC refuses, a frame with an offload request that the NIC cannot
//!   do, a frame that a rule looks at, and all frames while somebody captures frames.

#![allow(unsafe_code, reason = "tells the NIC where a guest's frame lies")]

use engine::schedule::{Portion, Served};
use heapless::Vec;
use memory::copy::Copier;
use memory::span::{LabeledPiece, Piece};
use nic::{HEADER_ROOM, Nic, Segment};
use trace::Classes;
use trace::frames::Destination;
use virtio::queue::Entries;

use crate::addresses::Addresses;
use crate::batch::{BATCH, HEADER, Offered, SPLIT, SendQueue, SingleFrame, payload};
use crate::bridge::Bridge;
use crate::counters::PortCounters;
use crate::offload::Front;
use crate::offload::{HEADER_BYTES, OffloadRequest, OffloadSupport};
use crate::policy::headers::{IPV6, has_ports};
use crate::policy::vlan::{PLAIN, Tagging, Vlan};
use crate::uplink::held::Held;
use crate::uplink::{EgressRoute, MAX_PIECE, Uplink};
use crate::watch;

/// Bytes of a frame that are copied: enough for Ethernet, IPv4 and TCP headers without options, and for Ethernet and
/// IPv6 headers.
const COPIED: usize = 54;
/// First bit of the number of an offload request in a frame's label. 0: no request. 1: the first request of the batch.
const REQUEST: u32 = SPLIT.trailing_zeros() + 1;

/// The port that a batch comes from.
pub(crate) struct Sender<'c> {
    pub port: usize,
    pub counters: &'c PortCounters,
    /// Offloads that its driver may request.
    pub support: OffloadSupport,
}

/// An offload request of a batch. Many frames share one.
struct Request {
    /// The fields of the virtio-net header that request it. All others are 0.
    header: [u8; HEADER_BYTES],
    /// The request as the NIC gets it. Each frame's headers are checked against it.
    offload: nic::Offload,
}

/// Finds the request of a frame's virtio-net header among those of the batch, or adds it.
/// Returns its number, or 0 if the header requests nothing. `None`: no NIC can express it, or the table is full.
fn request_number(requests: &mut Vec<Request, BATCH>, single: &SingleFrame<'_>) -> Option<u32> {
    if !single.requests_offload() {
        return Some(0);
    }
    let mut header = single.header;
    // `hdr_len` is not read (5.1.6.2.2), nor is `num_buffers`.
    (header[2], header[3], header[10], header[11]) = (0, 0, 0, 0);
    let known = requests.iter().position(|request| request.header == header);
    let at = match known {
        Some(at) => at,
        None => {
            let offload = nic::Offload::from_virtio(&header)?;
            let next = requests.len();
            requests.push(Request { header, offload }).ok()?;
            next
        }
    };
    Some((at as u32).saturating_add(1))
}

impl Bridge {
    /// Returns the egress route of a port's frames in a VLAN. `None`: the port has no uplink in that VLAN, or the link
    /// is down.
    pub(crate) fn egress_route<N: Nic<Token = Held>>(
        &self,
        uplinks: &[Option<Uplink<N>>],
        port: usize,
        vlan: Vlan,
    ) -> Option<EgressRoute> {
        let (uplink, tagging) = self.uplink_choice.choose(port, vlan)?;
        let is_up = uplinks.get(uplink)?.as_ref()?.is_up();
        is_up.then_some(EgressRoute { uplink, tagging, vlan })
    }

    /// Returns the uplink for a batch with these addresses, and whether each frame must be an IPv6 packet of a protocol
    /// with ports, because neighbour discovery is checked on the slow path. `None`: the frames take the slow path.
    #[cold]
    #[inline(never)]
    pub(crate) fn batch_uplink<'u, N: Nic<Token = Held>>(
        &self,
        uplinks: &'u mut [Option<Uplink<N>>],
        port: usize,
        addresses: Addresses,
    ) -> Option<(&'u mut Uplink<N>, bool)> {
        // Frames of a batch are untagged, so they cannot leave through an uplink that wants a tag.
        let route = self.egress_route(uplinks, port, PLAIN).filter(|route| route.tagging != Tagging::Tagged)?;
        let uplink = uplinks.get_mut(route.uplink)?.as_mut()?;
        let source = addresses.source();
        let policy = self.rules.get(port);
        let unruled = policy.is_none_or(|policy| policy.checks_neighbours_only() && policy.leave.is_empty());
        let looked_at = policy.is_some_and(|policy| policy.parses(addresses.ether_type()));
        let qualifies = unruled
            // The first bytes of these frames are not kept.
            && !self.wants(Classes::CAPTURES)
            && uplink.allows_batches()
            && self.rules.between(port, port, PLAIN).check_source(source).stopped.is_none()
            && !source.is_multicast()
            // A frame to the address of its own sender is not forwarded.
            && addresses.destination() != source
            && !self.switch.is_of_another(source, port)
            && (!looked_at || addresses.ether_type() == IPV6);
        qualifies.then_some((uplink, looked_at))
    }

    /// Sends one batch to an uplink from the start of a queue, up to a portion. `first` is the first frame.
    /// Returns what was served, or `None` if the NIC took nothing.
    #[inline(never)]
    pub(crate) fn egress_batch<'d, N: Nic<Token = Held>, L: Entries<'d>>(
        &mut self,
        (uplink, ports_only): (&mut Uplink<N>, bool),
        Sender { port, counters, support }: Sender<'_>,
        mut send_queue: SendQueue<'_, 'd, L>,
        first: SingleFrame<'d>,
        portion: &Portion,
        now: u64,
    ) -> Option<Served> {
        let most = send_queue.look.len().min(BATCH);
        let (addresses, max, offloads) = (first.addresses, send_queue.max, uplink.does_offloads());
        let (mut frames, mut requests) = (Vec::<(Offered<'d>, u32), BATCH>::new(), Vec::<Request, BATCH>::new());
        let (mut next, mut total) = (Some(first), 0);
        while let Some(single) =
            next.filter(|single| single.addresses == addresses && (offloads || !single.requests_offload()))
        {
            let Some(request) = request_number(&mut requests, &single) else { break };
            let frame = LabeledPiece::new(single.frame.piece(), single.frame.label() | request << REQUEST);
            // The vector has room: the loop ends at `most`.
            let _ = frames.push((frame, single.bytes));
            total = u64::from(single.bytes).saturating_add(total);
            next = if frames.len() < most && total < portion.bytes { send_queue.frame(frames.len()) } else { None };
        }
        let SendQueue { tx, tails, .. } = send_queue;
        let (copier, mut ends) = (tx.copier(), tails.iter());
        let (taken, refused) = uplink.send_batch(port, &frames, |(frame, bytes), room| {
            let (body, split) = (frame.piece(), frame.label() & SPLIT != 0);
            let request = (frame.label() >> REQUEST).checked_sub(1).map(|n| requests.get(n as usize));
            let long = matches!(request, Some(Some(request)) if bytes_to_copy(request.offload) > COPIED);
            let (header, rest) = match (split || long, body.first_and_from::<COPIED, COPIED>()) {
                (false, Some((first, rest))) => {
                    first.read(room.first_chunk_mut()?);
                    (COPIED, rest)
                }
                _ => copy_all(body, split, &mut ends, copier, room)?,
            };
            if ports_only && !room.get(..header).is_some_and(is_v6_with_ports) {
                return None;
            }
            // The addresses that were checked are the addresses that are sent.
            *room.first_chunk_mut()? = addresses.bytes();
            let offload = match request {
                None => nic::Offload::NOTHING,
                Some(request) => checked(
                    request?,
                    support,
                    Front { bytes: room.get(..header)?, len: bytes.checked_sub(HEADER)? },
                    max,
                )?,
            };
            let len = u16::try_from(rest.len()).ok().filter(|&len| usize::from(len) <= MAX_PIECE)?;
            // SAFETY: the bytes are the guest's own, and it asked for them to be sent. They stay its memory until the
            // token is back, because neither a reset nor a detach of its device is done while `Uplink::holds` returns
            // true.
            let rest = unsafe { Segment::new(rest.address() as u64, len) };
            // The request is taken last, because nothing here undoes that.
            let token = tx.hold(frame.label() as u16)?;
            Some(nic::Single { header, rest, offload, token: Held::whole(port, token) })
        });
        if let Some(token) = refused.and_then(Held::into_whole) {
            tx.rewind(token);
        }
        tx.finish_held();
        if taken == 0 {
            return None;
        }
        if self.is_watched() {
            self.show_egress(port, uplink, frames.get(..taken).unwrap_or(&[]), now);
        }
        self.switch.learn(addresses.source(), PLAIN, port, now);
        let bytes = frames.iter().take(taken).map(|&(_, bytes)| u64::from(bytes)).sum::<u64>();
        let payload = payload(bytes, taken);
        counters.frames.tx_packets.add(taken as u64);
        counters.frames.tx_bytes.add(payload);
        uplink.counters().tx_bytes.add(payload);
        Some(Served::new(taken as u32, bytes))
    }
}

impl Bridge {
    /// Shows a batch from a port that was handed to an uplink.
    #[cold]
    #[inline(never)]
    fn show_egress<N: Nic<Token = Held>>(
        &self,
        from: usize,
        uplink: &Uplink<N>,
        frames: &[(Offered<'_>, u32)],
        now: u64,
    ) {
        let mut lengths = [0; BATCH];
        for (length, (_, bytes)) in lengths.iter_mut().zip(frames) {
            *length = bytes.saturating_sub(HEADER);
        }
        let lengths = lengths.get(..frames.len()).unwrap_or(&lengths);
        self.show_steps(&watch::Batch { from, to: Some(Destination::Uplink), given: false, at: now, lengths });
        uplink.show_given(lengths);
    }
}

/// Returns whether a frame of IPv6's EtherType with these first bytes is a packet of a protocol with ports, so that it is
/// no neighbour discovery.
fn is_v6_with_ports(front: &[u8]) -> bool {
    let at = |i| front.get(i).copied();
    front.len() >= COPIED && at(14).is_some_and(|first| first >> 4 == 6) && at(20).is_some_and(has_ports)
}

/// Returns how many bytes of a frame with this request must be copied. For a checksum: up to its end. For segmentation:
/// as many as there is room for.
const fn bytes_to_copy(offload: nic::Offload) -> usize {
    match (offload.mss(), offload.checksum()) {
        (None, Some(checksum)) => checksum.end() as usize,
        _ => HEADER_ROOM,
    }
}

/// Checks an offload request against a frame's headers. Checks the length of the frame, or of its longest segment,
/// against `max`.
/// Returns the request for the NIC. `None`: the frame does not match the request, or is too long.
fn checked(request: &Request, support: OffloadSupport, front: Front<'_>, max: u32) -> Option<nic::Offload> {
    let read = OffloadRequest::read(&request.header, support, front).ok()?;
    let longest = read.segmentation.map_or(front.len, |segmentation| segmentation.longest(front.len));
    (read.for_nic() == Some(request.offload) && longest <= max).then_some(request.offload)
}

/// Copies the headers of a frame if [`COPIED`] bytes are not enough. If the frame is `split`, copies its whole first
/// buffer. Otherwise copies as much as there is room for.
/// Returns the number of bytes, and the rest. `None`: the first buffer of a split frame is too long.
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
