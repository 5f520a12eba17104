//! The rules of a port, and their evaluation on a frame.

use heapless::Vec;

use super::claims::Claims;
use super::guard::{Guard, MAX_MACS, Spoof};
use super::headers::{ARP, Headers, IPV6};
use super::limit::Bucket;
use super::stage::{Chain, ChainVerdict, Reads, Verdict};
use super::vlan::{Membership, PLAIN, SERVICE_TAGGED, TAGGED, Tagging, Vlan};

use crate::mac::Mac;
use crate::policy::Refusal;
use crate::ports::PortSet;

/// The rules of a port.
#[derive(Debug, Default)]
pub struct Policy {
    /// Addresses that its frames may come from.
    pub guard: Guard,
    /// Static addresses. Frames for them are always forwarded to the port, like frames for its own address. Those of an
    /// uplink are the gateway's: no guest may have them.
    pub fixed: Vec<Mac, MAX_MACS>,
    /// Addresses of others, which it may not announce for itself.
    pub claims: Claims,
    /// Its VLANs.
    pub vlan: Membership,
    /// Storm limit: frames that it may have flooded. These are broadcast, multicast, and unicast to an unknown address.
    pub storm: Option<Bucket>,
    /// Stages for frames on their way into the switch.
    pub enter: Chain,
    /// Stages for frames on their way to the port.
    pub leave: Chain,
}

/// A frame that the rules pass into the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its VLAN.
    pub vlan: Vlan,
    /// The tag (TCI) that it came with.
    pub tag: Option<u16>,
}

/// The result for a port without a policy.
pub const UNCHECKED: Entered = Entered { vlan: PLAIN, tag: None };

impl Policy {
    /// Returns whether it allows everything.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.looks()
            && self.storm.is_none()
            && self.fixed.is_empty()
            && self.guard.is_empty()
            && self.claims.is_empty()
    }

    /// Returns whether the rules look at more than the MAC addresses.
    #[must_use]
    pub fn looks(&self) -> bool {
        !self.vlan.is_plain() || self.guard.reads_packets() || !self.enter.is_empty() || !self.leave.is_empty()
    }

    /// Evaluates the rules on a frame of `len` bytes from the port at the time `now`. `front` are its first bytes.
    /// Ports that get a copy by a mirror are added to `mirrors`, even if the frame is refused.
    ///
    /// # Errors
    /// Why it is refused.
    #[inline]
    pub fn enter(&self, front: &[u8], len: u32, now: u64, mirrors: &mut PortSet) -> Result<Entered, Refusal> {
        // The default rules of a guest take this shortcut.
        if self.checks_neighbours_only() {
            let front = front.get(6..).and_then(|rest| rest.first_chunk()).ok_or(Refusal::Unreadable)?;
            let [a, b, c, d, e, f, high, low] = *front;
            if !self.parses(u16::from_be_bytes([high, low])) {
                let permitted = self.guard.permits(Mac::new([a, b, c, d, e, f]));
                return if permitted { Ok(UNCHECKED) } else { Err(Refusal::Mac) };
            }
        }
        self.enter_parsed(front, len, now, mirrors)
    }

    /// Returns whether its frames need no check but those of the MAC addresses, of ARP and neighbour discovery, and of
    /// tags. So it is with the default rules of a guest.
    #[must_use]
    #[inline]
    pub fn checks_neighbours_only(&self) -> bool {
        let plain = matches!(self.vlan, Membership::Plain | Membership::Untagged);
        plain && self.enter.is_empty() && !self.guard.reads_packets()
    }

    /// Returns whether its frames of this EtherType need a check besides that of the source address, if
    /// [`Policy::checks_neighbours_only`].
    #[must_use]
    #[inline]
    pub fn parses(&self, ether_type: u16) -> bool {
        match ether_type {
            TAGGED | SERVICE_TAGGED => !self.vlan.is_plain(),
            ARP | IPV6 => !self.claims.is_empty(),
            _ => false,
        }
    }

    fn enter_parsed(&self, front: &[u8], len: u32, now: u64, mirrors: &mut PortSet) -> Result<Entered, Refusal> {
        let (headers, vlan) = self.guard_and_vlan(front)?;
        passed(self.enter.run(&headers, vlan, len, now, mirrors))?;
        Ok(Entered { vlan, tag: headers.tag })
    }

    /// Evaluates what precedes the chain: the guard and the VLAN.
    fn guard_and_vlan(&self, front: &[u8]) -> Result<(Headers, Vlan), Refusal> {
        let packets = self.guard.reads_packets() || self.enter.reads_packets() || !self.claims.is_empty();
        let headers = Headers::parse(front, !self.vlan.is_plain(), packets).ok_or(Refusal::Unreadable)?;
        let refusal = |spoof| match spoof {
            Spoof::Mac => Refusal::Mac,
            Spoof::Address => Refusal::Address,
            Spoof::Unreadable => Refusal::Unreadable,
        };
        self.guard.check(&headers).map_err(refusal)?;
        // After the outer tag is removed, an inner tag would be taken for a tag of the switch's VLANs.
        if !self.vlan.is_plain() && headers.has_inner_tag() {
            return Err(Refusal::Vlan);
        }
        let vlan = self.vlan.admit(headers.tag).ok_or(Refusal::Vlan)?;
        // A port with IP addresses announces these only, as the guard has checked.
        if !self.guard.reads_packets() {
            self.claims.check(&self.guard, &headers, vlan).map_err(refusal)?;
        }
        Ok((headers, vlan))
    }

    /// Returns what the rules look at in frames from the port, besides their source address.
    #[must_use]
    pub fn enter_reads(&self) -> Reads {
        let mut reads = self.enter.reads();
        if !self.vlan.is_plain() {
            reads |= Reads::ETHERNET;
        }
        if self.guard.reads_packets() {
            reads |= Reads::ETHERNET | Reads::PACKETS;
        } else if !self.claims.is_empty() {
            reads |= Reads::ETHERNET | Reads::NEIGHBOURS;
        }
        reads
    }

    /// Returns the verdict of [`Policy::enter`] on the frames of a flow, without counting. `None`: each frame needs a
    /// verdict of its own.
    #[must_use]
    pub fn evaluate_enter(&self, front: &[u8]) -> Option<(ChainVerdict, Result<(), Refusal>)> {
        match self.guard_and_vlan(front) {
            Ok((headers, vlan)) => {
                let verdict = self.enter.evaluate(&headers, vlan)?;
                Some((verdict, if verdict.pass { Ok(()) } else { Err(Refusal::Denied) }))
            }
            Err(refusal) => Some((ChainVerdict::UNTOUCHED, Err(refusal))),
        }
    }

    /// Returns the verdict of [`Policy::leave`] on the frames of a flow. `None`: each frame needs a verdict of its own.
    #[must_use]
    pub fn evaluate_leave(&self, front: &[u8], vlan: Vlan) -> Option<ChainVerdict> {
        self.leave.evaluate(&Headers::parse(front, false, self.leave.reads_packets())?, vlan)
    }

    /// Evaluates the storm limit on a frame that is flooded.
    ///
    /// # Errors
    /// The frame is above the limit.
    #[inline]
    pub fn flood(&self, now: u64) -> Result<(), Refusal> {
        match &self.storm {
            Some(bucket) if !bucket.take(1, now) => Err(Refusal::Storm),
            _ => Ok(()),
        }
    }

    /// Evaluates the stages on a frame of `len` bytes in `vlan` on its way to the port. `front` are its first bytes,
    /// without the tag of the VLAN. `mirrors` is as in [`Policy::enter`].
    ///
    /// # Errors
    /// Why it is refused.
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

/// Returns how frames of a VLAN are tagged at a port with this policy, or without one. `None`: the port is not in the
/// VLAN.
#[inline]
#[must_use]
pub fn carries(policy: Option<&Policy>, vlan: Vlan) -> Option<Tagging> {
    match policy {
        Some(policy) => policy.vlan.carries(vlan),
        None => Membership::Plain.carries(vlan),
    }
}
