//! The bridge: the switch's forwarding table, the rules of the ports, the receive filters of the drivers, and the
//! buffers in which frames are checked. The paths of a frame (`path`) are its methods.

use alloc::boxed::Box;
use engine::device::Device;
use engine::devices::table;
use trace::frames::Destination;
use virtio::chain::Segments;
use virtio::counters::Counter;

use crate::batch::BATCH;
use crate::control_queue::ReceiveSettings;
use crate::counters::PortCounters;
use crate::current::Current;
use crate::flow::Flow;
use crate::frame_head::FrameHead;
use crate::mac::Mac;
use crate::policy::Policy;
use crate::policy::vlan::Vlan;
use crate::port::Port;
use crate::port_rules::PortRules;
use crate::ports::{MAX_PORTS, PortSet};
use crate::receive_buffers::Refused;
use crate::switch::Switch;
use crate::uplink::EgressRoute;
use crate::uplink_choice::UplinkChoice;
use crate::watch::Watch;

/// Bytes of the buffer through which a payload is copied while its checksum is computed.
const BOUNCE_BYTES: usize = 2048;

/// Counters of a port without a device. No frame is counted here.
static NO_DEVICE: PortCounters = PortCounters::new();

/// The bridge between the ports.
pub(crate) struct Bridge {
    pub switch: Switch,
    /// Ports that have a device.
    pub attached: PortSet,
    /// The counters of each port.
    counters: [&'static PortCounters; MAX_PORTS],
    /// The rules of each port.
    pub rules: PortRules,
    /// The uplink of each port and VLAN.
    pub uplink_choice: UplinkChoice,
    /// Longest frame of each port in bytes, without the virtio-net header.
    pub max_frame: [u32; MAX_PORTS],
    /// What each port's driver has set through its control queue.
    pub settings: Box<[ReceiveSettings; MAX_PORTS]>,
    /// Buffers of the receiver of the current frame.
    pub posted: Segments,
    /// Bytes whose checksum is computed while they are copied.
    pub bounce: [u8; BOUNCE_BYTES],
    /// Work that the current frame has caused on the slow path, in instructions.
    pub work: u32,
    /// The last flow of each port.
    pub flows: Box<[Option<Flow>; MAX_PORTS]>,
    /// First bytes of the frames of the current batch.
    pub heads: [FrameHead; BATCH],
    /// Who watches frames.
    pub watch: Option<Watch>,
    /// The frame that the slow path is at, while frames are watched.
    pub current: Current,
}

/// Where a frame is forwarded to.
pub(crate) enum Forwarding {
    /// To no port.
    Nowhere,
    /// To one port.
    Port(usize),
    /// To all ports of its VLAN.
    Flood,
    /// To the uplink only.
    Uplink,
}

impl Forwarding {
    /// As whoever watches sees it.
    pub(crate) const fn destination(&self) -> Destination {
        match *self {
            Self::Nowhere => Destination::Nobody,
            // There are fewer than 2^16 ports.
            Self::Port(port) => Destination::Port(port as u16),
            Self::Flood => Destination::Several,
            Self::Uplink => Destination::Uplink,
        }
    }
}

impl Bridge {
    /// Adds to the work that the frame has caused. It does not wrap: see [`work::MOST`].
    #[inline(always)]
    pub(crate) const fn add_work(&mut self, work: u32) {
        self.work = self.work.wrapping_add(work);
    }

    pub(crate) fn new(seed: u64, max_age: u64) -> Self {
        Self {
            switch: Switch::new(seed, max_age),
            attached: PortSet::NONE,
            counters: [&NO_DEVICE; MAX_PORTS],
            rules: PortRules::new(),
            uplink_choice: UplinkChoice::new(),
            max_frame: [0; MAX_PORTS],
            settings: table(|| ReceiveSettings::NONE),
            posted: Segments::new(),
            bounce: [0; BOUNCE_BYTES],
            work: 0,
            flows: table(|| None),
            heads: [const { FrameHead::EMPTY }; BATCH],
            watch: None,
            current: Current::new(),
        }
    }

    /// Connects a device to a port.
    pub(crate) fn attach(&mut self, port: usize, of_port: Port) {
        if let Some(counters) = self.counters.get_mut(port) {
            *counters = of_port.counters;
            self.attached.insert(port);
        }
        self.set_rules(port, of_port.policy);
        self.uplink_choice.attach(port, of_port.policy, of_port.uplink);
    }

    /// Disconnects the device of a port.
    pub(crate) fn detach(&mut self, port: usize) {
        self.switch.forget_port(port);
        self.set_rules(port, None);
        self.uplink_choice.detach(port);
        self.attached.remove(port);
        if let Some(counters) = self.counters.get_mut(port) {
            *counters = &NO_DEVICE;
        }
    }

    /// Sets or removes the rules of a port. Cached flows hold verdicts of the old rules, so all of them are dropped.
    fn set_rules(&mut self, port: usize, policy: Option<&'static Policy>) {
        self.rules.set(port, policy);
        self.flows.fill_with(|| None);
    }

    /// Returns the counters of a port.
    #[inline]
    pub(crate) fn counters(&self, port: usize) -> &'static PortCounters {
        self.counters.get(port).copied().unwrap_or(&NO_DEVICE)
    }

    /// Returns the longest frame of a port, in bytes.
    #[inline]
    pub(crate) fn max_frame(&self, port: usize) -> u32 {
        self.max_frame.get(port).copied().unwrap_or(0)
    }

    /// Returns what a port's driver has set through its control queue.
    #[inline]
    pub(crate) fn settings(&self, port: usize) -> Option<&ReceiveSettings> {
        self.settings.get(port)
    }

    /// Returns whether the receive filter of a port's driver accepts a frame for this address. `vlan` is the VLAN of
    /// its tag.
    pub(crate) fn accepts(&self, to: usize, destination: Mac, vlan: Option<u16>) -> bool {
        self.settings(to).is_none_or(|settings| settings.accepts(destination, vlan))
    }

    /// Checks the length of a frame against the receiving port.
    pub(crate) fn check_size(&self, len: u32, to: usize) -> Result<(), Refused> {
        if len > self.max_frame(to) { Err(Some(|c| &c.drops.rx_too_large)) } else { Ok(()) }
    }

    /// Returns the receive queue of port `to` for a frame that was sent on queue `sent_on`: that of the pair with the
    /// same number if the receiver uses it, otherwise that of the first pair.
    #[inline]
    pub(crate) fn receive_queue(&self, receiver: &Device, to: usize, sent_on: u16) -> u16 {
        let same = sent_on & !1;
        let used = self.settings(to).is_some_and(|settings| same < settings.pairs().saturating_mul(2));
        if used && receiver.has_queue(same) { same } else { 0 }
    }

    /// Decides where a frame of `vlan` with destination `to` is forwarded. `port` is the port that it came from, or
    /// `None` for an uplink. `egress` is the route to the sender's uplink. A frame for a unicast address that no guest
    /// has takes that route.
    pub(crate) fn forwarding(
        &self,
        to: Mac,
        vlan: Vlan,
        port: Option<usize>,
        egress: Option<EgressRoute>,
        now: u64,
    ) -> Forwarding {
        if to.is_multicast() {
            return if to.is_reserved() { Forwarding::Nowhere } else { Forwarding::Flood };
        }
        match self.switch.lookup(to, vlan, now) {
            Some(found) if Some(found) == port || self.rules.tagging(found, vlan).is_none() => Forwarding::Nowhere,
            Some(found) => Forwarding::Port(found),
            None if egress.is_some() => Forwarding::Uplink,
            None => Forwarding::Flood,
        }
    }

    /// Counts a frame of `bytes` bytes that was dropped at a port. `cause` is one of the port's counters.
    #[inline(always)]
    pub(crate) fn drop_frame(&self, port: usize, cause: &Counter, bytes: u32) {
        cause.add(1);
        if self.watch.is_some() {
            self.show_drop(port, cause, bytes);
        }
    }
}
