//! The way out of the machine: a NIC as a port of the switch.
//!
//! ```text
//!  guest ─▶ Frame: header checked and copied ─▶ Uplink::send ─▶ NIC reads the rest where it lies ─▶ wire
//!                                                  │ holds the guest's token until the NIC is done
//!  guest ◀── token completed ◀── Uplink::reclaim ◀─┘
//!
//!  wire ─▶ NIC's own buffers ─▶ Uplink::poll ─▶ one copy into the receiver's buffers ─▶ guest
//! ```
//!
//! Checksums and segmentation are left to a NIC that can do them, and otherwise done here: a frame that is cut leaves as
//! several, which hold one request together.
//!
//! A guest's memory is not given up while the NIC may read it: `Uplink::holds` says whether it may, and the engine
//! waits for that before a reset or a detachment is done. Frames come from the wire for the addresses of guests alone;
//! nothing is learned there, because whatever is not a guest's goes out. Which of several uplinks is whose, `net::exits` says.

#![allow(unsafe_code, reason = "tells the NIC where a guest's frame lies")]

mod none;

use memory::GuestMemory;
use nic::{
    HEADER_ROOM, Link, Nic, Offload, Outcome, Outgoing, PartialChecksum, ReceiveFilter, Received, Refused, Segment,
    Statistics,
};

use crate::backend::{Devices, MAX_PORTS};
use crate::net::Cursor;
use crate::offload::{self, Asked, Cut, MAX_FRONT};
use crate::policy::Policy;
use crate::policy::vlan::{Form, Vlan};
use crate::queue::Token;
use crate::stats::UplinkCounters;
pub use none::NoNic;

/// Uplinks of an engine at most.
pub const MAX_UPLINKS: usize = 4;

/// Frames taken from the NIC in one turn, of all its queues: as many of each.
const BUDGET: u32 = 64;
/// Frames of a queue, however many there are.
const LEAST: u32 = 8;
/// Pieces of a frame in a guest's memory that can be handed to a NIC; one of more pieces is dropped and counted.
const MAX_PIECES: usize = 32;
/// Bytes of a piece at most.
pub(crate) const MAX_PIECE: usize = 0x8000;
/// Frames that were cut of which the NIC may hold segments; while there are so many, others are dropped.
const MAX_ROWS: usize = 64;
/// Microseconds between two looks at what is not on the data path.
const SERVICE: u64 = 1000;

/// A guest's request whose buffers a NIC is reading.
#[derive(Debug)]
pub struct Held {
    port: usize,
    part: Part,
}

#[derive(Debug)]
enum Part {
    /// All of it.
    Whole(Token),
    /// A segment of the one that has this place in [`Uplink::rows`].
    Of(u8),
}

impl Held {
    /// All of a request of a port's.
    #[inline(always)]
    pub(crate) const fn whole(port: usize, token: Token) -> Self {
        Self { port, part: Part::Whole(token) }
    }

    /// The request, if it is all of one.
    pub(crate) fn into_whole(self) -> Option<Token> {
        match self.part {
            Part::Whole(token) => Some(token),
            Part::Of(_) => None,
        }
    }
}

/// A request that left in segments.
#[derive(Debug)]
struct Row {
    token: Token,
    /// Segments that the NIC holds, and one more while they are being sent.
    left: u32,
}

/// A frame of a guest's, as its uplink sees it.
pub(crate) struct Leaving<'a> {
    /// The port it comes from.
    pub port: usize,
    /// Its first bytes, as they were checked.
    pub header: &'a [u8],
    /// Where the rest begins in the guest's buffers.
    pub rest: Cursor<'a>,
    /// All bytes.
    pub len: u32,
    /// What is to be done to it.
    pub asked: Asked,
}

/// A frame that leaves as it is, or a segment of one.
struct Single<'a> {
    port: usize,
    header: &'a [u8],
    rest: Cursor<'a>,
    /// Bytes of the rest.
    len: u32,
}

/// A way out of the machine for the frames of a VLAN.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// By which uplink.
    pub uplink: usize,
    /// The form in which they leave.
    pub form: Form,
    /// The VLAN.
    pub vlan: Vlan,
}

/// One NIC, and what it holds of guests.
pub struct Uplink<N> {
    nic: N,
    /// Receive queues, each polled in every turn.
    queues: u16,
    held: [u32; MAX_PORTS],
    policy: Option<&'static Policy>,
    rows: [Option<Row>; MAX_ROWS],
    counters: &'static UplinkCounters,
    /// Ticks of the engine's clock in a microsecond.
    ticks: u64,
    serviced: u64,
    unflushed: bool,
}

impl<N: Nic<Token = Held>> Uplink<N> {
    /// A NIC that nobody else uses. `ticks`: how often the engine's clock ticks in a microsecond, not 0.
    #[must_use]
    pub fn new(nic: N, counters: &'static UplinkCounters, ticks: u64) -> Self {
        Self {
            queues: nic.limits().receive_queues,
            nic,
            held: [0; MAX_PORTS],
            policy: None,
            rows: [const { None }; MAX_ROWS],
            counters,
            ticks: if ticks == 0 { 1 } else { ticks },
            serviced: 0,
            unflushed: false,
        }
    }

    /// The same, with rules for what comes and goes.
    #[must_use]
    pub fn with_policy(self, policy: &'static Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Its rules.
    pub(crate) fn policy(&self) -> Option<&'static Policy> {
        self.policy
    }

    /// The link as last seen.
    pub fn link(&self) -> Link {
        self.nic.link()
    }

    /// The NIC's own counters as last read.
    pub fn statistics(&self) -> Statistics {
        self.nic.statistics()
    }

    /// Whether frames can leave.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.nic.link(), Link::Up(_))
    }

    /// Whether the NIC may still read memory of the guest at `port`.
    pub(crate) fn holds(&self, port: usize) -> bool {
        self.held.get(port).is_some_and(|&n| n != 0)
    }

    /// Hands a frame to the NIC. Its token is completed when the NIC is done with it; at once if it does not take it.
    /// `bounce` is room to add up bytes in.
    pub(crate) fn send(&mut self, devices: &mut Devices, frame: &Leaving<'_>, token: Token, bounce: &mut [u8]) {
        let port = frame.port;
        let sent = match devices.get(port) {
            Some(device) => self.dispatch(device.memory(), frame, token, bounce),
            None => Err(token),
        };
        if let Err(token) = sent {
            self.counters.tx_refused.add(1);
            if let Some(device) = devices.get_mut(port) {
                device.complete(token, 0);
            }
        }
    }

    /// Leaves to the NIC what it can do, and does the rest. The token comes back if the NIC has nothing of the frame.
    fn dispatch(
        &mut self,
        memory: &GuestMemory,
        frame: &Leaving<'_>,
        mut token: Token,
        bounce: &mut [u8],
    ) -> Result<(), Token> {
        let behind = frame.len.saturating_sub(frame.header.len() as u32);
        let whole = Single { port: frame.port, header: frame.header, rest: frame.rest.clone(), len: behind };
        if let Some(offload) = frame.asked.for_nic().filter(|offload| offload.is_none() || self.does_offloads()) {
            let refused;
            (refused, token) = match self.transmit(memory, &whole, offload, Part::Whole(token)) {
                Ok(()) => return Ok(()),
                Err((refused, Part::Whole(token))) => (refused, token),
                // It was not a part.
                Err((_, Part::Of(_))) => return Ok(()),
            };
            // What the NIC cannot do to this frame is done here.
            let here = matches!(refused, Refused::Offload | Refused::Header | Refused::Length | Refused::Segments);
            if frame.asked == Asked::NOTHING || !here {
                return Err(token);
            }
        }
        match (frame.asked.cut, frame.asked.checksum) {
            (Some(cut), _) => self.send_row(memory, frame, &cut, token, bounce),
            (None, Some(checksum)) => {
                let mut own = [0; MAX_FRONT];
                let Some(own) = own.get_mut(..frame.header.len()) else { return Err(token) };
                own.copy_from_slice(frame.header);
                if finish(memory, own, &whole, checksum, bounce).is_none() {
                    return Err(token);
                }
                self.counters.tx_checksums.add(1);
                let single = Single { header: own, ..whole };
                match self.transmit(memory, &single, Offload::NOTHING, Part::Whole(token)) {
                    Err((_, Part::Whole(token))) => Err(token),
                    _ => Ok(()),
                }
            }
            (None, None) => Err(token),
        }
    }

    /// Sends the segments that a frame stands for, as many as the NIC takes.
    fn send_row(
        &mut self,
        memory: &GuestMemory,
        frame: &Leaving<'_>,
        cut: &Cut,
        token: Token,
        bounce: &mut [u8],
    ) -> Result<(), Token> {
        let Some(row) = self.rows.iter().position(Option::is_none) else { return Err(token) };
        self.rows[row] = Some(Row { token, left: 1 });
        let mut rest = frame.rest.clone();
        for number in 0..cut.segments(frame.len) {
            let mut own = [0; MAX_FRONT];
            let Some(piece) = cut.segment(frame.header, frame.len, number, &mut own) else { break };
            let Some(own) = own.get_mut(..frame.header.len()) else { break };
            let single = Single { port: frame.port, header: &[], rest: rest.clone(), len: piece.len };
            if finish(memory, own, &single, cut.checksum(), bounce).is_none() {
                break;
            }
            let single = Single { header: own, ..single };
            if self.transmit(memory, &single, Offload::NOTHING, Part::Of(row as u8)).is_err() {
                self.counters.tx_refused.add(1);
                break;
            }
            self.counters.tx_segments.add(1);
            if let Some(Some(row)) = self.rows.get_mut(row) {
                row.left += 1;
            }
            rest.skip(piece.len as usize);
        }
        release(&mut self.rows, row as u8).map_or(Ok(()), Err)
    }

    /// Hands one frame to the NIC, which counts it as held.
    fn transmit(
        &mut self,
        memory: &GuestMemory,
        single: &Single<'_>,
        offload: Offload,
        part: Part,
    ) -> Result<(), (Refused, Part)> {
        let mut segments: heapless::Vec<Segment, MAX_PIECES> = heapless::Vec::new();
        let (mut rest, mut left) = (single.rest.clone(), single.len as usize);
        while left != 0 {
            let Some((gpa, n)) = rest.run(left.min(MAX_PIECE)) else { return Err((Refused::Length, part)) };
            let Ok(host) = memory.translate(gpa, n as u64) else { return Err((Refused::Segments, part)) };
            // SAFETY: the bytes are the guest's own, which it asked to be sent; they stay its memory until the token is
            // back, because neither a reset nor a detachment of its device is done while `holds` says so.
            let segment = unsafe { Segment::new(host.expose_provenance() as u64, n as u16) };
            if segments.push(segment).is_err() {
                return Err((Refused::Segments, part));
            }
            left -= n;
        }
        let outgoing = Outgoing { header: single.header, segments: &segments, offload };
        let sent = self.nic.transmit(0, &outgoing, Held { port: single.port, part });
        sent.map_err(|(refused, held)| (refused, held.part))?;
        self.held[single.port] += 1;
        self.unflushed = true;
        self.counters.tx_packets.add(1);
        self.counters.tx_bytes.add(single.header.len() as u64 + u64::from(single.len));
        Ok(())
    }

    /// Whether no rule looks at the frames that leave.
    pub(crate) fn lets_run(&self) -> bool {
        self.policy.is_none_or(|policy| policy.leave.is_empty())
    }

    /// Whether what is asked of frames is left to the NIC.
    pub(crate) fn does_offloads(&self) -> bool {
        self.nic.limits().offloads
    }

    /// Hands frames to the NIC, which `write` makes of `items` from port `port`: see [`Nic::transmit_all`]. Those that it takes it
    /// counts as held.
    #[inline(always)]
    pub(crate) fn send_run<'a, I>(
        &mut self,
        port: usize,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<nic::Single<Held>>,
    ) -> (usize, Option<Held>) {
        let (taken, refused) = self.nic.transmit_all(0, items, write);
        self.held[port] += taken as u32;
        self.unflushed |= taken != 0;
        self.counters.tx_packets.add(taken as u64);
        (taken, refused.map(|(_, held)| held))
    }

    /// Shows the NIC what it was handed.
    pub(crate) fn flush(&mut self) {
        if self.unflushed {
            self.unflushed = false;
            self.nic.flush(0);
        }
    }

    /// Completes the requests that the NIC is done with. How many.
    pub(crate) fn reclaim(&mut self, devices: &mut Devices) -> u32 {
        let Self { nic, held, rows, counters, .. } = self;
        nic.reclaim(0, |Held { port, part }, outcome| {
            held[port] = held[port].saturating_sub(1);
            if outcome == Outcome::Dropped {
                counters.tx_dropped.add(1);
            }
            let token = match part {
                Part::Whole(token) => Some(token),
                Part::Of(row) => release(rows, row),
            };
            if let (Some(token), Some(device)) = (token, devices.get_mut(port)) {
                device.complete(token, 0);
            }
        })
    }

    /// Looks after the NIC now and then. Whether it did.
    pub(crate) fn service(&mut self, now: u64) -> bool {
        let micros = now / self.ticks;
        let due = micros.wrapping_sub(self.serviced) >= SERVICE;
        if due {
            self.serviced = micros;
            if self.nic.service(micros) {
                self.counters.link_changes.add(1);
            }
            self.show();
        }
        due
    }

    /// Tells the NIC what is wanted.
    pub(crate) fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) {
        let left_out = self.nic.set_receive_filter(wanted);
        self.counters.nic_promiscuous.set((!left_out.unicasts).into());
        self.counters.nic_all_multicast.set((!left_out.groups).into());
    }

    /// Hands each frame that has come to `sink`. How many requests were moved.
    pub(crate) fn poll(&mut self, devices: &mut Devices, mut sink: impl FnMut(&mut Devices, &Received<'_>)) -> u32 {
        self.flush();
        let mut done = self.reclaim(devices);
        let counters = self.counters;
        // Whoever fills his queue gets no more of the turn than the others of theirs.
        let budget = (BUDGET / u32::from(self.queues.max(1))).max(LEAST);
        for queue in 0..self.queues {
            let came = self.nic.receive(queue, budget, |received| {
                counters.rx_packets.add(1);
                counters.rx_bytes.add(received.len() as u64);
                sink(devices, &received);
            });
            if queue != 0 {
                counters.rx_steered.add(came.into());
            }
            done += came;
        }
        done
    }

    /// Shows whoever reads the counters what the NIC has counted.
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

    /// Where it counts.
    pub(crate) fn counters(&self) -> &'static UplinkCounters {
        self.counters
    }
}

/// Lets go of a row once. Its token, if that was the last time.
fn release(rows: &mut [Option<Row>], row: u8) -> Option<Token> {
    let place = rows.get_mut(usize::from(row))?;
    let held = place.as_mut()?;
    held.left -= 1;
    if held.left == 0 { place.take().map(|row| row.token) } else { None }
}

/// Completes the checksum in `front`, of a frame that goes on with what is behind the front of `single`.
fn finish(
    memory: &GuestMemory,
    front: &mut [u8],
    single: &Single<'_>,
    checksum: PartialChecksum,
    bounce: &mut [u8],
) -> Option<()> {
    let rest = single.rest.clone().sum(memory, single.len as usize, bounce)?;
    offload::complete(front, checksum, rest).then_some(())
}
