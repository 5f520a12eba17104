//! A chain of stages: what the operator wants done to the frames of a port, in order, one chain for each direction.
//!
//! A stage has a rule and an action. Frames that its rule fits are counted, whatever the action is. `Allow` and `Deny` end the
//! chain, and so does `Limit` for what is above the limit; `Count` and `Mirror` go on. Frames at the end of the chain pass. What
//! a rule asks for and cannot be read (cut off, or behind too many extension headers) is refused by `Allow`, `Deny` and
//! `Limit`, because it may be just what they are there for. A later fragment has no ports: the first one decides.

use core::net::IpAddr;
use core::ops::RangeInclusive;

use bitflags::bitflags;
use heapless::Vec;

use super::headers::{Headers, Network, Transport};
use super::limit::Bucket;
use super::vlan::Vlan;
use crate::ports::{MAX_PORTS, PortSet};
use crate::stats::Counter;
use crate::switch::Mac;

/// Stages of a chain at most.
pub const MAX_STAGES: usize = 16;

/// Which frames a stage is about: those for which everything holds that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// EtherType, after a tag.
    pub ether_type: Option<u16>,
    /// VLAN, whether there is a tag or not.
    pub vlan: Option<Vlan>,
    /// Address of the link layer that it comes from.
    pub source_mac: Option<Mac>,
    /// Address of the link layer that it goes to.
    pub destination_mac: Option<Mac>,
    /// IP's protocol, after extension headers.
    pub protocol: Option<u8>,
    /// IP address that it comes from.
    pub source: Option<Prefix>,
    /// IP address that it goes to.
    pub destination: Option<Prefix>,
    /// Port that it comes from.
    pub source_port: Option<RangeInclusive<u16>>,
    /// Port that it goes to.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// Whether TCP asks for a connection: SYN without ACK.
    pub opening: Option<bool>,
    /// ICMP's or ICMPv6's type.
    pub icmp: Option<u8>,
}

/// IP addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The addresses whose first `bits` bits are those of `address`. None: it does not have as many.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some(Self { address, bits })
    }

    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

bitflags! {
    /// What of a frame is looked at. Frames of one form that are alike in it are treated alike.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Reads: u8 {
        /// Its Ethernet header.
        const ETHERNET = 1;
        /// Of an IP packet the address that it comes from, its protocol, and whether its headers are there.
        const PACKETS = 2;
        /// The address that it goes to.
        const DESTINATION = 4;
        /// The ports, or ICMP's type and code.
        const PORTS = 8;
        /// TCP's flags.
        const FLAGS = 16;
    }
}

/// Whether a rule is about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// That is not to be seen.
    Unclear,
}

impl Rule {
    /// Whether it is about a frame of this VLAN.
    #[must_use]
    pub fn fits(&self, headers: &Headers, vlan: Vlan) -> Fit {
        let is = |wanted: Option<Mac>, found| wanted.is_none_or(|wanted| wanted == found);
        let ethernet = self.ether_type.is_none_or(|wanted| wanted == headers.ether_type)
            && self.vlan.is_none_or(|wanted| wanted == vlan)
            && is(self.source_mac, headers.source)
            && is(self.destination_mac, headers.destination);
        if !ethernet {
            return Fit::No;
        }
        if !self.reads_packets() {
            return Fit::Yes;
        }
        let packet = match &headers.network {
            Network::Ip(packet) => packet,
            Network::Broken => return Fit::Unclear,
            Network::Other | Network::Arp(_) => return Fit::No,
        };
        let within = |wanted: &Option<Prefix>, found| wanted.is_none_or(|prefix| prefix.contains(found));
        if !within(&self.source, packet.source) || !within(&self.destination, packet.destination) {
            return Fit::No;
        }
        match (self.protocol, packet.protocol) {
            (Some(_), None) => return Fit::Unclear,
            (Some(wanted), Some(found)) if wanted != found => return Fit::No,
            _ => {}
        }
        self.fits_transport(packet.transport)
    }

    fn fits_transport(&self, transport: Transport) -> Fit {
        if !self.reads_transport() {
            return Fit::Yes;
        }
        let fits = match transport {
            Transport::Hidden => return Fit::Unclear,
            Transport::Other | Transport::Later => false,
            Transport::Ports { source, destination, flags } => {
                let within = |wanted: &Option<RangeInclusive<u16>>, found| {
                    wanted.as_ref().is_none_or(|range| range.contains(&found))
                };
                // TCP's SYN and ACK; other protocols have no flags and ask for nothing.
                let opening = flags & 0x12 == 0x02;
                within(&self.source_port, source)
                    && within(&self.destination_port, destination)
                    && self.opening.is_none_or(|wanted| wanted == opening)
                    && self.icmp.is_none()
            }
            Transport::Icmp { kind, .. } => {
                self.icmp == Some(kind)
                    && self.source_port.is_none()
                    && self.destination_port.is_none()
                    && self.opening.is_none()
            }
        };
        if fits { Fit::Yes } else { Fit::No }
    }

    /// Whether it asks for more than Ethernet's header.
    #[must_use]
    pub fn reads_packets(&self) -> bool {
        self.protocol.is_some() || self.source.is_some() || self.destination.is_some() || self.reads_transport()
    }

    /// What it asks for.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let ports = self.source_port.is_some() || self.destination_port.is_some() || self.icmp.is_some();
        let mut reads = Reads::ETHERNET;
        reads.set(Reads::PACKETS, self.reads_packets());
        reads.set(Reads::DESTINATION, self.destination.is_some());
        reads.set(Reads::PORTS, ports);
        reads.set(Reads::FLAGS, self.opening.is_some());
        reads
    }

    fn reads_transport(&self) -> bool {
        self.source_port.is_some() || self.destination_port.is_some() || self.opening.is_some() || self.icmp.is_some()
    }
}

/// What a stage does to the frames that its rule fits.
#[derive(Debug)]
pub enum Action {
    /// Lets them pass; no later stage sees them.
    Allow,
    /// Drops them.
    Deny,
    /// Nothing else.
    Count,
    /// Gives somebody else a copy.
    Mirror(Sink),
    /// Drops those that are too many.
    Limit(Bucket, Unit),
}

/// Who gets the copies of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The guest at this port, whatever VLAN it is in; none of its own stages are asked.
    Port(usize),
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Frames.
    Frames,
    /// Their bytes, from Ethernet's header on.
    Bytes,
}

/// A stage in use.
#[derive(Debug)]
pub struct Stage {
    rule: Rule,
    action: Action,
    /// Frames that its rule fitted.
    pub frames: Counter,
    /// Their bytes, from Ethernet's header on.
    pub bytes: Counter,
    /// Frames that it dropped, those among them that could not be read.
    pub dropped: Counter,
}

impl Stage {
    /// One that has counted nothing.
    #[must_use]
    pub const fn new(rule: Rule, action: Action) -> Self {
        let zero = Counter::new;
        Self { rule, action, frames: zero(), bytes: zero(), dropped: zero() }
    }
}

/// What a chain says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// A stage denies it.
    Denied,
    /// It is above a limit.
    Limited,
    /// A stage cannot read what it has to look at.
    Unreadable,
}

/// What a chain does with frames that are all alike to it: a bit for each stage whose rule they fit, and whether they pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    fitted: u16,
    /// Whether they go on. They do not because the last stage that they fit denies them.
    pub pass: bool,
}

const _: () = assert!(MAX_STAGES <= u16::BITS as usize);

impl Judged {
    /// No rule fits.
    pub const UNTOUCHED: Self = Self { fitted: 0, pass: true };
}

/// Stages in their order.
#[derive(Debug, Default)]
pub struct Chain {
    stages: Vec<Stage, MAX_STAGES>,
    reads: Reads,
}

impl Chain {
    /// Adds a stage at the end.
    ///
    /// # Errors
    /// There is no room: the stage comes back.
    #[allow(clippy::result_large_err, reason = "the stage is given back")]
    pub fn push(&mut self, stage: Stage) -> Result<(), Stage> {
        let reads = stage.rule.reads();
        self.stages.push(stage)?;
        self.reads |= reads;
        Ok(())
    }

    /// In their order.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Whether somebody gets copies.
    #[must_use]
    pub fn mirrors(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage.action, Action::Mirror(_)))
    }

    /// Whether there is none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether what is in a frame is looked at.
    #[must_use]
    pub const fn reads_packets(&self) -> bool {
        self.reads.contains(Reads::PACKETS)
    }

    /// What is looked at.
    #[must_use]
    pub const fn reads(&self) -> Reads {
        self.reads
    }

    /// What it does with frames that have these headers, as far as it looks at them. Nothing is counted. None: each is to be
    /// looked at by itself, by [`Chain::run`].
    #[must_use]
    pub fn judge(&self, headers: &Headers, vlan: Vlan) -> Option<Judged> {
        let mut judged = Judged::UNTOUCHED;
        for (i, stage) in self.stages.iter().enumerate() {
            match stage.rule.fits(headers, vlan) {
                Fit::No => continue,
                Fit::Unclear => return None,
                Fit::Yes => judged.fitted |= 1 << i,
            }
            match stage.action {
                Action::Count => {}
                Action::Allow => break,
                Action::Deny => {
                    judged.pass = false;
                    break;
                }
                Action::Mirror(_) | Action::Limit(..) => return None,
            }
        }
        Some(judged)
    }

    /// Counts frames of `bytes` bytes together that were judged so.
    #[inline]
    pub fn count(&self, judged: Judged, frames: u64, bytes: u64) {
        let mut fitted = judged.fitted;
        while fitted != 0 {
            let Some(stage) = self.stages.get(fitted.trailing_zeros() as usize) else { return };
            fitted &= fitted - 1;
            stage.frames.add(frames);
            stage.bytes.add(bytes);
            if fitted == 0 && !judged.pass {
                stage.dropped.add(frames);
            }
        }
    }

    /// Sends a frame of `len` bytes through it at the time `now`. Ports that are to get a copy are added to `mirrors`.
    pub fn run(&self, headers: &Headers, vlan: Vlan, len: u32, now: u64, mirrors: &mut PortSet) -> Verdict {
        for stage in &self.stages {
            let decides = !matches!(stage.action, Action::Count | Action::Mirror(_));
            match stage.rule.fits(headers, vlan) {
                Fit::No => continue,
                Fit::Unclear if decides => {
                    stage.dropped.add(1);
                    return Verdict::Unreadable;
                }
                Fit::Unclear => continue,
                Fit::Yes => {}
            }
            stage.frames.add(1);
            stage.bytes.add(u64::from(len));
            match &stage.action {
                Action::Allow => return Verdict::Pass,
                Action::Deny => {
                    stage.dropped.add(1);
                    return Verdict::Denied;
                }
                Action::Count => {}
                Action::Mirror(Sink::Port(port)) if *port < MAX_PORTS => mirrors.insert(*port),
                Action::Mirror(Sink::Port(_)) => {}
                Action::Limit(bucket, unit) => {
                    let units = if *unit == Unit::Frames { 1 } else { u64::from(len) };
                    if !bucket.take(units, now) {
                        stage.dropped.add(1);
                        return Verdict::Limited;
                    }
                }
            }
        }
        Verdict::Pass
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
