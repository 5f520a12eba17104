//! What the frames of a port may do.
//!
//! ```text
//!  enters the switch:  guard ─▶ VLAN ─▶ chain ─▶ (storm limit, if it is for many) ─▶ switch
//!  leaves the switch:  VLAN ─▶ chain ─▶ the port
//! ```
//!
//! A [`Policy`] is made by the control core and never changed; what it counts and the levels of its limits are in it, written
//! by the engine's core alone. A port without one is not asked. All that is looked at is in the copy of a frame's first bytes
//! that is sent on ([`headers::LOOKED_AT`] of them), so that what was checked is what arrives.

pub mod guard;
pub mod headers;
pub mod limit;
pub mod stage;
pub mod vlan;

use heapless::Vec;

use crate::ports::PortSet;
use crate::stats::{Counter, PortCounters};
use crate::switch::Mac;
use guard::{Guard, MAX_MACS, Spoof};
use headers::Headers;
use limit::Bucket;
use stage::{Chain, Judged, Reads, Verdict};
use vlan::{Form, Membership, PLAIN, Vlan};

/// The rules of a port.
#[derive(Debug, Default)]
pub struct Policy {
    /// Who it is.
    pub guard: Guard,
    /// Addresses that are always behind it, besides its own.
    pub fixed: Vec<Mac, MAX_MACS>,
    /// Its VLANs.
    pub vlan: Membership,
    /// Frames for many that it may send.
    pub storm: Option<Bucket>,
    /// What its frames go through on their way into the switch.
    pub enter: Chain,
    /// What frames go through on their way to it.
    pub leave: Chain,
}

/// Why a frame does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is from an address of the link layer that is not the port's.
    Mac,
    /// It is from an address of the network layer that is not the port's, or says that it is somebody else's.
    Address,
    /// Its headers cannot be read, and a rule asks for them.
    Unreadable,
    /// It is in no VLAN of the port's.
    Vlan,
    /// A stage denies it.
    Denied,
    /// It is above a stage's limit.
    Limited,
    /// It is for many, and there were too many such.
    Storm,
}

/// A frame that may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its VLAN.
    pub vlan: Vlan,
    /// The tag (TCI) that it came with.
    pub tag: Option<u16>,
}

/// A frame that may enter anywhere: what it is without a policy.
pub const UNCHECKED: Entered = Entered { vlan: PLAIN, tag: None };

impl Policy {
    /// Whether it allows everything.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.looks() && self.storm.is_none() && self.fixed.is_empty() && self.guard.is_empty()
    }

    /// Whether more is looked at than the addresses of the link layer.
    #[must_use]
    pub fn looks(&self) -> bool {
        !self.vlan.is_plain() || self.guard.reads_packets() || !self.enter.is_empty() || !self.leave.is_empty()
    }

    /// Looks at a frame of `len` bytes that comes from the port at the time `now`. `front` is its beginning. Ports that are to
    /// get a copy are added to `mirrors`, whatever becomes of the frame.
    ///
    /// # Errors
    /// Why it does not go on.
    #[inline]
    pub fn enter(&self, front: &[u8], len: u32, now: u64, mirrors: &mut PortSet) -> Result<Entered, Refusal> {
        // What every guest has unless its operator says otherwise.
        if self.vlan.is_plain() && self.enter.is_empty() && !self.guard.reads_packets() {
            let source = front.get(6..).and_then(|rest| rest.first_chunk()).copied().ok_or(Refusal::Unreadable)?;
            return if self.guard.permits(Mac::new(source)) { Ok(UNCHECKED) } else { Err(Refusal::Mac) };
        }
        self.enter_looked_at(front, len, now, mirrors)
    }

    fn enter_looked_at(&self, front: &[u8], len: u32, now: u64, mirrors: &mut PortSet) -> Result<Entered, Refusal> {
        let (headers, vlan) = self.look(front)?;
        passed(self.enter.run(&headers, vlan, len, now, mirrors))?;
        Ok(Entered { vlan, tag: headers.tag })
    }

    /// What comes before the chain: who sent a frame, and in which VLAN it is.
    fn look(&self, front: &[u8]) -> Result<(Headers, Vlan), Refusal> {
        let packets = self.guard.reads_packets() || self.enter.reads_packets();
        let headers = Headers::parse(front, !self.vlan.is_plain(), packets).ok_or(Refusal::Unreadable)?;
        self.guard.check(&headers).map_err(|spoof| match spoof {
            Spoof::Mac => Refusal::Mac,
            Spoof::Address => Refusal::Address,
            Spoof::Unreadable => Refusal::Unreadable,
        })?;
        // A tag within the tag would be one of its own where the outer one is taken off.
        if !self.vlan.is_plain() && headers.has_inner_tag() {
            return Err(Refusal::Vlan);
        }
        let vlan = self.vlan.admit(headers.tag).ok_or(Refusal::Vlan)?;
        Ok((headers, vlan))
    }

    /// What is looked at of frames that come from the port, besides where they come from.
    #[must_use]
    pub fn enter_reads(&self) -> Reads {
        let mut reads = self.enter.reads();
        if !self.vlan.is_plain() {
            reads |= Reads::ETHERNET;
        }
        if self.guard.reads_packets() {
            reads |= Reads::ETHERNET | Reads::PACKETS;
        }
        reads
    }

    /// What [`Policy::enter`] says of frames that are alike in all that is looked at; nothing is counted. None: each is to be
    /// looked at by itself.
    #[must_use]
    pub fn judge_entering(&self, front: &[u8]) -> Option<(Judged, Result<(), Refusal>)> {
        match self.look(front) {
            Ok((headers, vlan)) => {
                let judged = self.enter.judge(&headers, vlan)?;
                Some((judged, if judged.pass { Ok(()) } else { Err(Refusal::Denied) }))
            }
            Err(refusal) => Some((Judged::UNTOUCHED, Err(refusal))),
        }
    }

    /// What [`Policy::leave`] says of such frames.
    #[must_use]
    pub fn judge_leaving(&self, front: &[u8], vlan: Vlan) -> Option<Judged> {
        self.leave.judge(&Headers::parse(front, false, self.leave.reads_packets())?, vlan)
    }

    /// Looks at a frame for many.
    ///
    /// # Errors
    /// There were too many.
    #[inline]
    pub fn flood(&self, now: u64) -> Result<(), Refusal> {
        match &self.storm {
            Some(bucket) if !bucket.take(1, now) => Err(Refusal::Storm),
            _ => Ok(()),
        }
    }

    /// Looks at a frame of `len` bytes in `vlan` that is to go to the port. `front` is its beginning, without the tag of the
    /// VLAN. `mirrors` is as in [`Policy::enter`].
    ///
    /// # Errors
    /// Why it does not go on.
    #[inline]
    pub fn leave(&self, front: &[u8], vlan: Vlan, len: u32, now: u64, mirrors: &mut PortSet) -> Result<(), Refusal> {
        if self.leave.is_empty() {
            return Ok(());
        }
        let headers = Headers::parse(front, false, self.leave.reads_packets()).ok_or(Refusal::Unreadable)?;
        passed(self.leave.run(&headers, vlan, len, now, mirrors))
    }
}

fn passed(verdict: Verdict) -> Result<(), Refusal> {
    match verdict {
        Verdict::Pass => Ok(()),
        Verdict::Denied => Err(Refusal::Denied),
        Verdict::Limited => Err(Refusal::Limited),
        Verdict::Unreadable => Err(Refusal::Unreadable),
    }
}

/// How a frame of a VLAN leaves by a port that may have a policy. None: it does not.
#[inline]
#[must_use]
pub fn carries(policy: Option<&Policy>, vlan: Vlan) -> Option<Form> {
    match policy {
        Some(policy) => policy.vlan.carries(vlan),
        None => Membership::Plain.carries(vlan),
    }
}

impl Refusal {
    /// Where a frame from a guest is counted that was refused on its way into the switch.
    #[must_use]
    pub const fn entering(self, counters: &PortCounters) -> &Counter {
        match self {
            Self::Mac => &counters.tx_spoofed_mac,
            Self::Address => &counters.tx_spoofed_address,
            Self::Unreadable => &counters.tx_unreadable,
            Self::Vlan => &counters.tx_vlan,
            Self::Denied => &counters.tx_denied,
            Self::Limited => &counters.tx_limited,
            Self::Storm => &counters.tx_storm,
        }
    }

    /// Where a frame to a guest is counted that was refused on its way out of the switch.
    #[must_use]
    pub const fn leaving(self, counters: &PortCounters) -> &Counter {
        match self {
            Self::Denied => &counters.rx_denied,
            Self::Limited => &counters.rx_limited,
            Self::Mac | Self::Address | Self::Unreadable | Self::Vlan | Self::Storm => &counters.rx_unreadable,
        }
    }
}

#[cfg(test)]
mod frames;
#[cfg(test)]
mod tests;
