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
//! A guest's memory is not given up while the NIC may read it: `Uplink::holds` says whether it may, and the engine
//! waits for that before a reset or a detachment is done. Frames come from the wire for the addresses of guests alone;
//! nothing is learned there, because whatever is not a guest's goes out.

#![allow(unsafe_code, reason = "tells the NIC where a guest's frame lies")]

use nic::{Link, Nic, Offload, Outcome, Outgoing, Received, Refused, Segment, Statistics};

use crate::backend::{Devices, MAX_PORTS};
use crate::chain::Segment as Buffer;
use crate::queue::Token;
use crate::stats::UplinkCounters;

/// Frames taken from the NIC in one turn.
const BUDGET: u32 = 64;
/// Pieces of a frame in a guest's memory that can be handed to a NIC; one of more pieces is dropped and counted.
const MAX_PIECES: usize = 32;
/// Microseconds between two looks at what is not on the data path.
const SERVICE: u64 = 1000;

/// A guest's request whose buffers a NIC is reading.
#[derive(Debug)]
pub struct Held {
    port: usize,
    token: Token,
}

/// A frame of a guest's, as its uplink sees it.
pub(crate) struct Leaving<'a, I> {
    /// The port it comes from.
    pub port: usize,
    /// Its first bytes, as they were checked.
    pub header: &'a [u8],
    /// The rest.
    pub rest: I,
    /// All bytes.
    pub len: u32,
}

/// One NIC, and what it holds of guests.
pub struct Uplink<N> {
    nic: N,
    held: [u32; MAX_PORTS],
    counters: &'static UplinkCounters,
    /// Ticks of the engine's clock in a microsecond.
    ticks: u64,
    serviced: u64,
    unflushed: bool,
}

impl<N: Nic<Token = Held>> Uplink<N> {
    /// A NIC that nobody else uses. `ticks`: how often the engine's clock ticks in a microsecond, not 0.
    #[must_use]
    pub const fn new(nic: N, counters: &'static UplinkCounters, ticks: u64) -> Self {
        Self {
            nic,
            held: [0; MAX_PORTS],
            counters,
            ticks: if ticks == 0 { 1 } else { ticks },
            serviced: 0,
            unflushed: false,
        }
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
    pub(crate) fn send(
        &mut self,
        devices: &mut Devices,
        frame: Leaving<'_, impl Iterator<Item = Buffer>>,
        token: Token,
    ) {
        let (port, len) = (frame.port, frame.len);
        match self.transmit(devices, frame, token) {
            Ok(()) => {
                self.held[port] += 1;
                self.unflushed = true;
                self.counters.tx_packets.add(1);
                self.counters.tx_bytes.add(u64::from(len));
            }
            Err(token) => {
                self.counters.tx_refused.add(1);
                if let Some(device) = devices.get_mut(port) {
                    device.complete(token, 0);
                }
            }
        }
    }

    /// The token comes back if the NIC does not take the frame.
    fn transmit(
        &mut self,
        devices: &Devices,
        frame: Leaving<'_, impl Iterator<Item = Buffer>>,
        token: Token,
    ) -> Result<(), Token> {
        let Leaving { port, header, rest, .. } = frame;
        let Some(device) = devices.get(port) else { return Err(token) };
        let mut segments: heapless::Vec<Segment, MAX_PIECES> = heapless::Vec::new();
        for piece in rest {
            let host = device.memory().translate(piece.gpa, u64::from(piece.len));
            let (Ok(host), Ok(len)) = (host, u16::try_from(piece.len)) else { return Err(token) };
            // SAFETY: the bytes are the guest's own, which it asked to be sent; they stay its memory until the token is
            // back, because neither a reset nor a detachment of its device is done while `holds` says so.
            let segment = unsafe { Segment::new(host.expose_provenance() as u64, len) };
            if segments.push(segment).is_err() {
                return Err(token);
            }
        }
        let outgoing = Outgoing { header, segments: &segments, offload: Offload::default() };
        self.nic.transmit(0, &outgoing, Held { port, token }).map_err(|(_, held)| held.token)
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
        let Self { nic, held, counters, .. } = self;
        nic.reclaim(0, |Held { port, token }, outcome| {
            held[port] = held[port].saturating_sub(1);
            if outcome == Outcome::Dropped {
                counters.tx_dropped.add(1);
            }
            if let Some(device) = devices.get_mut(port) {
                device.complete(token, 0);
            }
        })
    }

    /// Looks after the NIC, and hands each frame that has come to `sink`. How many requests were moved.
    pub(crate) fn poll(
        &mut self,
        devices: &mut Devices,
        now: u64,
        mut sink: impl FnMut(&mut Devices, &Received<'_>),
    ) -> u32 {
        let micros = now / self.ticks;
        if micros.wrapping_sub(self.serviced) >= SERVICE {
            self.serviced = micros;
            if self.nic.service(micros) {
                self.counters.link_changes.add(1);
            }
        }
        self.flush();
        let done = self.reclaim(devices);
        let counters = self.counters;
        done + self.nic.receive(0, BUDGET, |received| {
            counters.rx_packets.add(1);
            counters.rx_bytes.add(received.len() as u64);
            sink(devices, &received);
        })
    }

    /// Where it counts.
    pub(crate) fn counters(&self) -> &'static UplinkCounters {
        self.counters
    }
}

/// No NIC: what an engine without an uplink is made with.
#[derive(Debug)]
pub enum NoNic {}

impl Nic for NoNic {
    type Token = Held;

    fn address(&self) -> [u8; 6] {
        match *self {}
    }
    fn limits(&self) -> nic::Limits {
        match *self {}
    }
    fn link(&self) -> Link {
        match *self {}
    }
    fn statistics(&self) -> Statistics {
        match *self {}
    }
    fn service(&mut self, _: u64) -> bool {
        match *self {}
    }
    fn receive(&mut self, _: u16, _: u32, _: impl FnMut(Received<'_>)) -> u32 {
        match *self {}
    }
    fn transmit(&mut self, _: u16, _: &Outgoing<'_>, _: Held) -> Result<(), (Refused, Held)> {
        match *self {}
    }
    fn flush(&mut self, _: u16) {
        match *self {}
    }
    fn reclaim(&mut self, _: u16, _: impl FnMut(Held, Outcome)) -> u32 {
        match *self {}
    }
}
