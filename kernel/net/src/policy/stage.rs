//! A chain of stages: what the operator wants to be done with the frames of a port, in order. Each direction has a
//! chain.
//!
//! A stage has a rule and an action. Frames that match the rule are counted, whatever the action is.
//!
//! - `Allow` and `Deny` end the chain. `Limit` ends it for frames above the limit.
//! - `Count` and `Mirror` continue.
//! - A frame that reaches the end of the chain passes.
//! - If a rule looks at a field that cannot be read (cut off, or behind too many extension headers), `Allow`, `Deny`
//!   and `Limit` refuse the frame: the stage may be meant for it.
//! - A later fragment has no ports. The first fragment decides.

use core::net::IpAddr;
use core::ops::RangeInclusive;

use bitflags::bitflags;
use heapless::Vec;

use super::headers::{Headers, Network, Transport};
use super::limit::Bucket;
use super::vlan::Vlan;
use crate::mac::Mac;
use crate::ports::{MAX_PORTS, PortSet};
use virtio::counters::Counter;

/// Most stages of a chain.
pub const MAX_STAGES: usize = 16;

/// The match of a stage. A frame matches if every field that is given matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// EtherType, after a tag.
    pub ether_type: Option<u16>,
    /// VLAN of the frame, tagged or not.
    pub vlan: Option<Vlan>,
    /// MAC source address.
    pub source_mac: Option<Mac>,
    /// MAC destination address.
    pub destination_mac: Option<Mac>,
    /// IP protocol, after extension headers.
    pub protocol: Option<u8>,
    /// IP source address.
    pub source: Option<Prefix>,
    /// IP destination address.
    pub destination: Option<Prefix>,
    /// Source port.
    pub source_port: Option<RangeInclusive<u16>>,
    /// Destination port.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// Whether the frame opens a TCP connection: SYN without ACK.
    pub opening: Option<bool>,
    /// Type of ICMP or ICMPv6.
    pub icmp: Option<u8>,
}

/// An IP prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Makes the prefix of the first `bits` bits of `address`. `None`: the address has fewer bits.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some(Self { address, bits })
    }

    /// Returns whether an address is in the prefix.
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
    /// Fields of a frame that rules look at. Frames of one layout that are equal in them get the same verdict.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Reads: u8 {
        /// Its Ethernet header.
        const ETHERNET = 1;
        /// The source address and the protocol of an IP packet, and whether its headers are there.
        const PACKETS = 2;
        /// The destination address of an IP packet.
        const DESTINATION = 4;
        /// The ports, or ICMP's type and code.
        const PORTS = 8;
        /// TCP's flags.
        const FLAGS = 16;
        /// ARP and neighbour discovery.
        const NEIGHBOURS = 32;
    }
}

/// Whether a frame matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It matches.
    Yes,
    /// It does not match.
    No,
    /// A field that the rule looks at cannot be read.
    Unclear,
}

impl Rule {
    /// Returns whether a frame of this VLAN matches.
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
                // TCP's SYN and ACK. Other protocols have no flags and open no connection.
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

    /// Returns whether it looks at more than the Ethernet header.
    #[must_use]
    pub fn reads_packets(&self) -> bool {
        self.protocol.is_some() || self.source.is_some() || self.destination.is_some() || self.reads_transport()
    }

    /// Returns the fields that it looks at.
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

/// The action on frames that match.
#[derive(Debug)]
pub enum Action {
    /// They pass. Later stages do not see them.
    Allow,
    /// They are dropped.
    Deny,
    /// They are counted only.
    Count,
    /// Another port gets a copy.
    Mirror(Sink),
    /// Those above the limit are dropped.
    Limit(Bucket, Unit),
}

/// Where the copies of a mirror go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// To the guest at this port. The VLANs and the stages of this port are ignored.
    Port(usize),
}

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Frames.
    Frames,
    /// Their bytes, from Ethernet's header on.
    Bytes,
}

/// A stage, with its counters.
#[derive(Debug)]
pub struct Stage {
    rule: Rule,
    action: Action,
    /// Frames that matched.
    pub frames: Counter,
    /// Their bytes, from Ethernet's header on.
    pub bytes: Counter,
    /// Frames that it dropped, including those that it could not read.
    pub dropped: Counter,
}

impl Stage {
    /// Makes a stage whose counters are 0.
    #[must_use]
    pub const fn new(rule: Rule, action: Action) -> Self {
        let zero = Counter::new;
        Self { rule, action, frames: zero(), bytes: zero(), dropped: zero() }
    }
}

/// The verdict of a chain on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// A stage denies it.
    Denied,
    /// It is above a limit.
    Limited,
    /// A stage cannot read a field that it looks at.
    Unreadable,
}

/// The verdict of a chain on the frames of a flow: a bit for each stage whose rule they match, and whether they pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainVerdict {
    fitted: u16,
    /// Whether they pass. If not, the last stage that they match denies them.
    pub pass: bool,
}

const _: () = assert!(MAX_STAGES <= u16::BITS as usize);

impl ChainVerdict {
    /// No rule matches, and they pass.
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
    /// There is no room. The stage is returned.
    #[allow(clippy::result_large_err, reason = "the stage is given back")]
    pub fn push(&mut self, stage: Stage) -> Result<(), Stage> {
        let reads = stage.rule.reads();
        self.stages.push(stage)?;
        self.reads |= reads;
        Ok(())
    }

    /// Returns the stages in their order.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Returns whether a stage mirrors.
    #[must_use]
    pub fn mirrors(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage.action, Action::Mirror(_)))
    }

    /// Returns whether there is no stage.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Returns whether a stage looks at more than the Ethernet header.
    #[must_use]
    pub const fn reads_packets(&self) -> bool {
        self.reads.contains(Reads::PACKETS)
    }

    /// Returns the fields that the stages look at.
    #[must_use]
    pub const fn reads(&self) -> Reads {
        self.reads
    }

    /// Evaluates the chain on the frames of a flow, which have these headers. Does not count. `None`: each frame needs
    /// a verdict of its own, from [`Chain::run`].
    #[must_use]
    pub fn evaluate(&self, headers: &Headers, vlan: Vlan) -> Option<ChainVerdict> {
        let mut verdict = ChainVerdict::UNTOUCHED;
        for (i, stage) in self.stages.iter().enumerate() {
            match stage.rule.fits(headers, vlan) {
                Fit::No => continue,
                Fit::Unclear => return None,
                Fit::Yes => verdict.fitted |= 1 << i,
            }
            match stage.action {
                Action::Count => {}
                Action::Allow => break,
                Action::Deny => {
                    verdict.pass = false;
                    break;
                }
                Action::Mirror(_) | Action::Limit(..) => return None,
            }
        }
        Some(verdict)
    }

    /// Counts frames of `bytes` bytes in total at the stages that they match.
    #[inline]
    pub fn count(&self, verdict: ChainVerdict, frames: u64, bytes: u64) {
        let mut fitted = verdict.fitted;
        while fitted != 0 {
            let Some(stage) = self.stages.get(fitted.trailing_zeros() as usize) else { return };
            fitted &= fitted.wrapping_sub(1);
            stage.frames.add(frames);
            stage.bytes.add(bytes);
            if fitted == 0 && !verdict.pass {
                stage.dropped.add(frames);
            }
        }
    }

    /// Evaluates the chain on a frame of `len` bytes at the time `now`. Ports that get a copy by a mirror are added to
    /// `mirrors`.
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
