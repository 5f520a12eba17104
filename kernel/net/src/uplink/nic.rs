//! One NIC as an uplink: it sends frames, holds the guests' requests until they are sent, and receives frames.

#![allow(unsafe_code, reason = "tells the NIC where a guest's frame lies")]

use core::num::NonZeroU64;

use engine::devices::Devices;
use memory::GuestMemory;
use nic::{
    HEADER_ROOM, Link, Nic, Offload, Outcome, Outgoing, PartialChecksum, ReceiveFilter, Received, Refused, Segment,
};
use virtio::queue::Token;

use crate::counters::{UplinkCounters, UplinkDrop};
use crate::cursor::Cursor;
use crate::offload::{self, MAX_FRONT, OffloadRequest, Segmentation};
use crate::policy::Policy;
use crate::ports::MAX_PORTS;
use crate::uplink::EgressFrame;
use crate::uplink::UplinkShared;
use crate::uplink::held::{Held, Part};
use crate::uplink::watched::Watched;
use crate::watch::Watch;
use crate::work;

/// Most uplinks of an engine.
pub const MAX_UPLINKS: usize = 4;
// A record has the number of an uplink in a byte.
const _: () = assert!(MAX_UPLINKS <= 256);

/// Most frames received in one turn. They are divided evenly among the receive queues.
const TURN_BUDGET: u32 = 64;
/// Frames received from each queue in one turn, even if there are many queues.
const MIN_PER_QUEUE: u32 = 8;
/// Most pieces of a frame in guest memory that are handed to a NIC. A frame of more pieces is dropped and counted.
const MAX_PIECES: usize = 32;
/// Longest piece, in bytes.
pub(crate) const MAX_PIECE: usize = 0x8000;
/// Most requests of which the NIC may hold segments at the same time. Further frames to be segmented are dropped
/// meanwhile.
const MAX_SEGMENTED: usize = 64;
/// Microseconds between two services of the NIC. A service does what does not belong to the data path.
const SERVICE_INTERVAL: u64 = 1000;

/// A request that was sent as segments.
#[derive(Debug)]
struct SegmentedRequest {
    token: Token,
    /// Segments that the NIC holds, plus 1 while segments are still being sent.
    left: u32,
}

/// A frame as it goes on the wire: a whole frame, or one segment.
struct WireFrame<'a> {
    port: usize,
    header: &'a [u8],
    rest: Cursor<'a>,
    /// Bytes of `rest`.
    len: u32,
}

impl WireFrame<'_> {
    /// Bytes of the frame.
    const fn bytes(&self) -> u32 {
        self.len.saturating_add(self.header.len() as u32)
    }
}

/// One NIC, and the guests' requests that it holds.
pub struct Uplink<N> {
    nic: N,
    /// Number of receive queues. Each is polled in every turn.
    queues: u16,
    held: [u32; MAX_PORTS],
    policy: Option<&'static Policy>,
    segmented: [Option<SegmentedRequest>; MAX_SEGMENTED],
    counters: &'static UplinkCounters,
    /// Ticks of the engine's clock per microsecond.
    ticks: NonZeroU64,
    serviced: u64,
    shared: Option<&'static UplinkShared>,
    /// The NIC's count of changes of the text that was shared last.
    told: Option<u32>,
    unflushed: bool,
    watched: Watched,
}

impl<N: Nic<Token = Held>> Uplink<N> {
    /// Makes an uplink of a NIC that nothing else uses. `ticks`: ticks of the engine's clock per microsecond, not 0.
    #[must_use]
    pub fn new(nic: N, counters: &'static UplinkCounters, ticks: u64) -> Self {
        Self {
            queues: nic.limits().receive_queues,
            nic,
            held: [0; MAX_PORTS],
            policy: None,
            segmented: [const { None }; MAX_SEGMENTED],
            counters,
            ticks: NonZeroU64::new(ticks).unwrap_or(NonZeroU64::MIN),
            serviced: 0,
            shared: None,
            told: None,
            unflushed: false,
            watched: Watched::default(),
        }
    }

    /// Sets who watches its frames. `number`: its number among the engine's uplinks.
    pub(crate) const fn watch(&mut self, watch: Option<Watch>, number: usize) {
        self.watched = Watched { watch, number };
    }

    /// Counts a frame of `len` bytes with these first bytes that was dropped here, and shows it.
    pub(crate) fn drop_frame(&self, drop: UplinkDrop, len: u32, front: &[u8]) {
        self.watched.drop_frame(self.counters, drop, len, Some(front));
    }

    /// Shows frames of these lengths that the NIC took in a batch. Call it while frames are watched.
    pub(crate) fn show_given(&self, lengths: &[u32]) {
        self.watched.given(lengths);
    }

    /// Returns its NIC's own address.
    pub(crate) fn address(&self) -> [u8; 6] {
        self.nic.address()
    }

    /// Sets the rules for its frames.
    #[must_use]
    pub fn with_policy(self, policy: &'static Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Has it tell there what its NIC says of its port, and look there for how long the light is to blink.
    #[must_use]
    pub fn with_shared(self, shared: &'static UplinkShared) -> Self {
        Self { shared: Some(shared), ..self }
    }

    /// Returns its rules.
    pub(crate) fn policy(&self) -> Option<&'static Policy> {
        self.policy
    }

    /// Returns whether the link is up.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.nic.link(), Link::Up(_))
    }

    /// Returns whether the NIC may still read memory of the guest at `port`.
    pub(crate) fn holds(&self, port: usize) -> bool {
        self.held.get(port).is_some_and(|&n| n != 0)
    }

    /// Hands a frame to the NIC. Its token is completed when the NIC is done with it, or at once if the NIC does not
    /// take it. `bounce` is a buffer for computing checksums.
    /// Returns the work that this took.
    pub(crate) fn send(
        &mut self,
        devices: &mut Devices,
        frame: &EgressFrame<'_>,
        token: Token,
        bounce: &mut [u8],
    ) -> u32 {
        let port = frame.port;
        let made = |of: &UplinkCounters| (of.tx_segments.get(), of.tx_checksums.get());
        let before = made(self.counters);
        let sent = match devices.get(port) {
            Some(device) => self.dispatch(device.memory(), frame, token, bounce),
            None => Err(token),
        };
        if let Err(token) = sent {
            self.drop_frame(UplinkDrop::RefusedByNic, frame.len, frame.header);
            if let Some(device) = devices.get_mut(port) {
                device.complete(token, 0);
            }
        }
        let after = made(self.counters);
        let segments = after.0.wrapping_sub(before.0) as u32;
        let checksums = after.1.wrapping_sub(before.1) as u32;
        let summed = if segments == 0 && checksums == 0 { 0 } else { work::summed(frame.len) };
        let pieces = work::times(frame.rest.pieces() as u32, work::PIECE);
        let segments = segments.saturating_mul(work::SEGMENT + work::CHECKSUM + work::SENT);
        let checksums = checksums.saturating_mul(work::CHECKSUM);
        [pieces, segments, checksums, summed].into_iter().fold(work::SENT, u32::saturating_add)
    }

    /// Sends a frame. Leaves offloads to the NIC if it can do them. Otherwise does them here.
    /// Returns the token if the NIC took no part of the frame.
    fn dispatch(
        &mut self,
        memory: &GuestMemory,
        frame: &EgressFrame<'_>,
        mut token: Token,
        bounce: &mut [u8],
    ) -> Result<(), Token> {
        let behind = frame.len.saturating_sub(frame.header.len() as u32);
        let whole = WireFrame { port: frame.port, header: frame.header, rest: frame.rest.clone(), len: behind };
        if let Some(offload) = frame.request.for_nic().filter(|offload| offload.is_none() || self.does_offloads()) {
            let refused;
            (refused, token) = match self.transmit(memory, &whole, offload, Part::Whole(token)) {
                Ok(()) => return Ok(()),
                Err((refused, Part::Whole(token))) => (refused, token),
                // Cannot happen: a whole request was handed over.
                Err((_, Part::Segment(_))) => return Ok(()),
            };
            // If the NIC cannot send the frame in this form, the offload is done here.
            let here = matches!(refused, Refused::Offload | Refused::Header | Refused::Length | Refused::Segments);
            if frame.request == OffloadRequest::NOTHING || !here {
                return Err(token);
            }
        }
        match (frame.request.segmentation, frame.request.checksum) {
            (Some(segmentation), _) => self.send_segments(memory, frame, &segmentation, token, bounce),
            (None, Some(checksum)) => {
                let mut own = [0; MAX_FRONT];
                let Some(own) = own.get_mut(..frame.header.len()) else { return Err(token) };
                own.copy_from_slice(frame.header);
                if finish(memory, own, &whole, checksum, bounce).is_none() {
                    return Err(token);
                }
                self.counters.tx_checksums.add(1);
                let single = WireFrame { header: own, ..whole };
                match self.transmit(memory, &single, Offload::NOTHING, Part::Whole(token)) {
                    Err((_, Part::Whole(token))) => Err(token),
                    _ => Ok(()),
                }
            }
            (None, None) => Err(token),
        }
    }

    /// Segments a frame, and sends as many segments as the NIC takes.
    /// Returns the token if it took none.
    fn send_segments(
        &mut self,
        memory: &GuestMemory,
        frame: &EgressFrame<'_>,
        segmentation: &Segmentation,
        token: Token,
        bounce: &mut [u8],
    ) -> Result<(), Token> {
        let free = self.segmented.iter_mut().enumerate().find(|(_, place)| place.is_none());
        let Some((index, place)) = free else { return Err(token) };
        *place = Some(SegmentedRequest { token, left: 1 });
        let mut rest = frame.rest.clone();
        for number in 0..segmentation.segments(frame.len) {
            let mut own = [0; MAX_FRONT];
            let Some(piece) = segmentation.segment(frame.header, frame.len, number, &mut own) else { break };
            let Some(own) = own.get_mut(..frame.header.len()) else { break };
            let single = WireFrame { port: frame.port, header: &[], rest: rest.clone(), len: piece.len };
            if finish(memory, own, &single, segmentation.checksum(), bounce).is_none() {
                break;
            }
            let single = WireFrame { header: own, ..single };
            if self.transmit(memory, &single, Offload::NOTHING, Part::Segment(index as u8)).is_err() {
                self.drop_frame(UplinkDrop::RefusedByNic, single.bytes(), single.header);
                break;
            }
            self.counters.tx_segments.add(1);
            if let Some(Some(request)) = self.segmented.get_mut(index) {
                request.left = request.left.saturating_add(1);
            }
            rest.skip(piece.len as usize);
        }
        release(&mut self.segmented, index as u8).map_or(Ok(()), Err)
    }

    /// Hands one frame to the NIC, and counts it as held.
    fn transmit(
        &mut self,
        memory: &GuestMemory,
        single: &WireFrame<'_>,
        offload: Offload,
        part: Part,
    ) -> Result<(), (Refused, Part)> {
        let mut segments: heapless::Vec<Segment, MAX_PIECES> = heapless::Vec::new();
        let (mut rest, mut left) = (single.rest.clone(), single.len as usize);
        while left != 0 {
            let Some((gpa, n)) = rest.run(left.min(MAX_PIECE)) else { return Err((Refused::Length, part)) };
            let Ok(host) = memory.translate(gpa, n as u64) else { return Err((Refused::Segments, part)) };
            // SAFETY: the bytes are the guest's own, and it asked for them to be sent. They stay its memory until the
            // token is back, because neither a reset nor a detach of its device is done while `holds` returns true.
            let segment = unsafe { Segment::new(host.expose_provenance() as u64, n as u16) };
            if segments.push(segment).is_err() {
                return Err((Refused::Segments, part));
            }
            left = left.saturating_sub(n);
        }
        let outgoing = Outgoing { header: single.header, segments: &segments, offload };
        let Some(held) = self.held.get_mut(single.port) else { return Err((Refused::Segments, part)) };
        let sent = self.nic.transmit(0, &outgoing, Held { port: single.port, part });
        sent.map_err(|(refused, held)| (refused, held.part))?;
        *held = held.saturating_add(1);
        self.unflushed = true;
        self.counters.tx_packets.add(1);
        self.counters.tx_bytes.add(single.bytes().into());
        self.watched.sent(single.bytes(), single.header);
        Ok(())
    }

    /// Returns whether no rule of the uplink looks at the frames that leave.
    pub(crate) fn allows_batches(&self) -> bool {
        self.policy.is_none_or(|policy| policy.leave.is_empty())
    }

    /// Returns whether the NIC does offloads.
    pub(crate) fn does_offloads(&self) -> bool {
        self.nic.limits().offloads
    }

    /// Hands a batch of frames of port `port` to the NIC. `write` makes each frame of an item: see
    /// [`Nic::transmit_all`].
    /// Returns how many frames the NIC took, and the token of a frame that it refused. The frames that it took are
    /// counted as held.
    #[inline(always)]
    pub(crate) fn send_batch<'a, I>(
        &mut self,
        port: usize,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<nic::Single<Held>>,
    ) -> (usize, Option<Held>) {
        let Some(held) = self.held.get_mut(port) else { return (0, None) };
        let (taken, refused) = self.nic.transmit_all(0, items, write);
        *held = held.saturating_add(taken as u32);
        self.unflushed |= taken != 0;
        self.counters.tx_packets.add(taken as u64);
        (taken, refused.map(|(_, held)| held))
    }

    /// Tells the NIC of the frames that were handed to it.
    pub(crate) fn flush(&mut self) {
        if self.unflushed {
            self.unflushed = false;
            self.nic.flush(0);
        }
    }

    /// Completes the requests that the NIC is done with. Returns their number.
    pub(crate) fn reclaim(&mut self, devices: &mut Devices) -> u32 {
        let Self { nic, held, segmented, counters, watched, .. } = self;
        nic.reclaim(0, |Held { port, part }, outcome| {
            if let Some(held) = held.get_mut(port) {
                *held = held.saturating_sub(1);
            }
            if outcome == Outcome::Dropped {
                // Its bytes are not kept.
                watched.drop_frame(counters, UplinkDrop::Unsent, 0, None);
            }
            let token = match part {
                Part::Whole(token) => Some(token),
                Part::Segment(index) => release(segmented, index),
            };
            if let (Some(token), Some(device)) = (token, devices.get_mut(port)) {
                device.complete(token, 0);
            }
        })
    }

    /// Services the NIC if [`SERVICE_INTERVAL`] has passed. Returns whether it did.
    pub(crate) fn service(&mut self, now: u64) -> bool {
        let micros = now / self.ticks;
        let due = micros.wrapping_sub(self.serviced) >= SERVICE_INTERVAL;
        if due {
            self.serviced = micros;
            if self.nic.service(micros) {
                self.counters.link_changes.add(1);
            }
            self.show();
            self.share(micros);
        }
        due
    }

    /// Sets the NIC's receive filter, and records whether the NIC filters unicasts and multicasts.
    pub(crate) fn set_receive_filter(&mut self, filter: &ReceiveFilter<'_>) {
        let left_out = self.nic.set_receive_filter(filter);
        self.counters.nic_promiscuous.set((!left_out.unicasts).into());
        self.counters.nic_all_multicast.set((!left_out.groups).into());
    }

    /// Hands each received frame to `sink`. Returns the number of requests and frames that were moved.
    pub(crate) fn poll(&mut self, devices: &mut Devices, mut sink: impl FnMut(&mut Devices, &Received<'_>)) -> u32 {
        self.flush();
        let mut done = self.reclaim(devices);
        let counters = self.counters;
        // A limit for each queue: a guest whose queue is flooded must not take the turn from the others.
        let budget = TURN_BUDGET.checked_div(self.queues.into()).unwrap_or(TURN_BUDGET).max(MIN_PER_QUEUE);
        for queue in 0..self.queues {
            let received = self.nic.receive(queue, budget, |received| {
                counters.rx_packets.add(1);
                counters.rx_bytes.add(received.len() as u64);
                sink(devices, &received);
            });
            if queue != 0 {
                counters.rx_steered.add(received.into());
            }
            done = received.saturating_add(done);
        }
        done
    }

    /// Shares what the NIC says of its port, and does what is asked of its light.
    #[cold]
    fn share(&mut self, now: u64) {
        let (Some(shared), Some(port)) = (self.shared, self.nic.port()) else { return };
        if self.told != Some(port.changes()) {
            self.told = Some(port.changes());
            shared.publish(port);
        }
        match shared.take_blink() {
            0 => {}
            seconds => self.nic.blink(now.saturating_add(u64::from(seconds).saturating_mul(1_000_000))),
        }
    }

    /// Copies the NIC's own counters to the uplink's.
    #[cold]
    fn show(&self) {
        let (c, s) = (self.counters, self.nic.statistics());
        c.link_mbits.set(match self.nic.link() {
            Link::Up(speed) => speed.into(),
            Link::Down => 0,
        });
        c.tx_held.set(self.held.iter().map(|n| u64::from(*n)).sum());
        for (counter, value) in [
            (&c.nic_rx_packets, s.received),
            (&c.nic_rx_bytes, s.received_bytes),
            (&c.nic_tx_packets, s.sent),
            (&c.nic_tx_bytes, s.sent_bytes),
            (&c.nic_rx_missed, s.missed),
            (&c.nic_rx_no_buffer, s.no_buffer),
            (&c.nic_rx_crc_errors, s.crc_errors),
            (&c.nic_rx_length_errors, s.length_errors),
            (&c.nic_rx_malformed, s.malformed),
            (&c.nic_rx_filtered, s.filtered),
            (&c.nic_recoveries, s.recoveries),
        ] {
            counter.set(value);
        }
    }

    /// Returns its counters.
    pub(crate) fn counters(&self) -> &'static UplinkCounters {
        self.counters
    }
}

/// Releases one segment of a segmented request. Returns the request's token after the last one.
fn release(segmented: &mut [Option<SegmentedRequest>], index: u8) -> Option<Token> {
    let place = segmented.get_mut(usize::from(index))?;
    let held = place.as_mut()?;
    held.left = held.left.saturating_sub(1);
    if held.left == 0 { place.take().map(|request| request.token) } else { None }
}

/// Completes the checksum in `front`, the first bytes of a frame. The other bytes are `single.rest`. `None`: a range is
/// not memory of the guest, or the checksum does not lie in `front`.
fn finish(
    memory: &GuestMemory,
    front: &mut [u8],
    single: &WireFrame<'_>,
    checksum: PartialChecksum,
    bounce: &mut [u8],
) -> Option<()> {
    let rest = single.rest.clone().sum(memory, single.len as usize, bounce)?;
    offload::complete(front, checksum, rest).then_some(())
}
