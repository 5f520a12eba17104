//! The general way from guest to guest: one frame at a time, of every form that the rules allow, to one port, to all, or
//! out. What the fast way ([`super::stream`]) leaves is done here.

use alloc::boxed::Box;

use memory::GuestMemory;
use nic::Nic;

use super::beginning::Beginning;
use super::buffers::{Buffers, Cursor, Refused, complete, gather, need, put};
use super::controlq::Wishes;
use super::exits::Exits;
use super::flow::Flow;
use super::frame::{Bad, Frame, Front};
use super::rules::Ports;
use super::stream::RUN;
use crate::backend::{Devices, MAX_PORTS, table};
use crate::chain::Segments;
use crate::device::Device;
use crate::fault::Fault;
use crate::offload::Can;
use crate::policy::vlan::{Form, Vlan};
use crate::policy::{Entered, Policy, UNCHECKED};
use crate::ports::PortSet;
use crate::stats::PortCounters;
use crate::switch::{Mac, Switch};
use crate::uplink::{Held, Uplink, Way};

/// Bytes that are copied at a time where they are added up.
const BOUNCE_BYTES: usize = 2048;

/// What joins the ports.
pub(super) struct Bridge {
    pub switch: Switch,
    /// The rules of each port.
    pub rules: Ports,
    /// By which uplink each port's frames leave and come.
    pub exits: Exits,
    /// The largest frame of each port in bytes, without virtio-net header.
    pub max_frame: [u32; MAX_PORTS],
    /// What the driver at each port wishes to receive.
    pub wishes: Box<[Wishes; MAX_PORTS]>,
    /// Buffers of the receiver that is given a frame.
    pub posted: Segments,
    /// Where bytes are added up on their way.
    pub bounce: [u8; BOUNCE_BYTES],
    /// The last run of each port.
    pub flows: Box<[Option<Flow>; MAX_PORTS]>,
    /// What was read of the frames of a run.
    pub beginnings: [Beginning; RUN],
}

pub(super) enum Route {
    Nowhere,
    Port(usize),
    Flood,
    Out,
}

impl Bridge {
    pub(super) fn new(seed: u64, max_age: u64) -> Self {
        Self {
            switch: Switch::new(seed, max_age),
            rules: Ports::new(),
            exits: Exits::new(),
            max_frame: [0; MAX_PORTS],
            wishes: table(|| Wishes::NONE),
            posted: Segments::new(),
            bounce: [0; BOUNCE_BYTES],
            flows: table(|| None),
            beginnings: [const { Beginning::EMPTY }; RUN],
        }
    }

    /// Gives a port rules, or takes them away. What was said of frames from there, or to there, is no longer known.
    pub(super) fn set_rules(&mut self, port: usize, policy: Option<&'static Policy>) {
        self.rules.set(port, policy);
        self.flows.fill_with(|| None);
    }

    /// The largest frame of a port.
    #[inline]
    pub(super) fn max_frame(&self, port: usize) -> u32 {
        self.max_frame.get(port).copied().unwrap_or(0)
    }

    /// Whether a frame may come from a port, and in which VLAN it is; without that one's tag from then on. Who is to get a
    /// copy gets it, whatever comes of it.
    pub(super) fn admit(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        now: u64,
    ) -> Result<Vlan, Bad> {
        if frame.front().source().is_multicast() {
            return Err(Bad::Source);
        }
        let Some(policy) = self.rules.get(port) else { return Ok(UNCHECKED.vlan) };
        let mut mirrors = PortSet::NONE;
        let entered = policy.enter(frame.front().frame(), frame.len(), now, &mut mirrors);
        if mirrors != PortSet::NONE {
            self.mirror(devices, port, queue, frame, mirrors);
        }
        let Entered { vlan, tag } = entered.map_err(Bad::Refused)?;
        if let Some(tag) = tag {
            frame.front_mut().bears(tag);
            frame.front_mut().shape(Form::Untagged, vlan);
        }
        Ok(vlan)
    }

    /// What the driver at a port wishes to receive.
    #[inline]
    pub(super) fn wishes(&self, port: usize) -> Option<&Wishes> {
        self.wishes.get(port)
    }

    /// Whether a port's driver wants a frame for this address, with that tag.
    pub(super) fn wants(&self, to: usize, destination: Mac, vlan: Option<u16>) -> bool {
        self.wishes(to).is_none_or(|wishes| wishes.wants(destination, vlan))
    }

    /// Whether a frame of `len` bytes may go to a port.
    pub(super) fn accept(&self, len: u32, to: usize) -> Result<(), Refused> {
        if len > self.max_frame(to) { Err(Some(|c| &c.rx_too_large)) } else { Ok(()) }
    }

    /// The receive queue of port `to` for what was sent on queue `sent_on`: of the same pair if the receiver uses it, or
    /// else the first.
    #[inline]
    pub(super) fn receive_queue(&self, receiver: &Device, to: usize, sent_on: u16) -> u16 {
        let same = sent_on & !1;
        let used = self.wishes(to).is_some_and(|wishes| same < 2 * wishes.pairs());
        if used && receiver.has_queue(same) { same } else { 0 }
    }

    /// Where a frame for this address goes that is in `vlan` and comes from `port`, or from outside. `way`: that out of the
    /// machine, where whatever no guest is known to have is.
    pub(super) fn route(&self, to: Mac, vlan: Vlan, port: Option<usize>, way: Option<Way>, now: u64) -> Route {
        if to.is_multicast() {
            return Route::Flood;
        }
        match self.switch.lookup(to, vlan, now) {
            Some(found) if Some(found) == port || self.rules.form(found, vlan).is_none() => Route::Nowhere,
            Some(found) => Route::Port(found),
            None if way.is_some() => Route::Out,
            None => Route::Flood,
        }
    }

    /// Sends a frame of `vlan` from `port` to the guests that it is for. `way`: that out of the machine, if there is one for
    /// this VLAN. What is returned is to go there, in that form, as well or alone.
    #[allow(clippy::too_many_arguments, reason = "a frame, where it comes from, and where it may go")]
    pub(super) fn forward(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        vlan: Vlan,
        way: Option<Way>,
        now: u64,
    ) -> Option<Way> {
        self.switch.learn(frame.front().source(), vlan, port, now);
        let destination = frame.front().destination();
        let found = match self.route(destination, vlan, Some(port), way, now) {
            Route::Out => return way,
            Route::Nowhere => false,
            // A known receiver counts what it does not get, whatever the reason.
            Route::Port(to) => {
                self.give_to(devices, port, queue, frame, vlan, to, now);
                true
            }
            Route::Flood => {
                if let Some(refusal) = self.rules.get(port).and_then(|policy| policy.flood(now).err()) {
                    if let Some(device) = devices.get(port) {
                        refusal.entering(device.shared().counters()).add(1);
                    }
                    return None;
                }
                let ports = devices.ports();
                ports.filter(|&to| to != port && self.give_to(devices, port, queue, frame, vlan, to, now)).count() != 0
            }
        };
        let leaves = way.filter(|_| destination.is_multicast());
        if !found
            && leaves.is_none()
            && let Some(device) = devices.get(port)
        {
            device.shared().counters().tx_no_destination.add(1);
        }
        leaves
    }

    /// Whether a frame from `port` may leave the machine by `uplink`; it has the form for that from then on.
    #[allow(clippy::too_many_arguments, reason = "a frame, where it comes from, and where it goes")]
    pub(super) fn leave<N: Nic<Token = Held>>(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        way: Way,
        uplink: &Uplink<N>,
        now: u64,
    ) -> bool {
        let mut mirrors = PortSet::NONE;
        let mut passes = true;
        if let Some(policy) = uplink.policy().filter(|policy| !policy.leave.is_empty()) {
            frame.front_mut().shape(Form::Untagged, way.vlan);
            passes = policy.leave(frame.front().frame(), way.vlan, frame.len(), now, &mut mirrors).is_ok();
        }
        frame.front_mut().shape(way.form, way.vlan);
        self.mirror(devices, port, queue, frame, mirrors);
        if !passes {
            uplink.counters().tx_denied.add(1);
        }
        passes
    }

    /// Gives a frame of `vlan` from `port` to `to`, and counts what becomes of it. Whether there is somebody.
    #[allow(clippy::too_many_arguments, reason = "a frame, where it comes from, and where it goes")]
    fn give_to(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        vlan: Vlan,
        to: usize,
        now: u64,
    ) -> bool {
        let Some(form) = self.rules.form(to, vlan) else { return false };
        let Some((sender, receiver)) = devices.pair(port, to) else { return false };
        let behind = frame.behind();
        let Some((gets, mirrors)) = self.judge_for(to, receiver, frame.front_mut(), behind, (vlan, form), now) else {
            return false;
        };
        if gets {
            self.give_whatever(frame, sender.memory(), receiver, to, queue);
        }
        self.mirror(devices, port, queue, frame, mirrors);
        true
    }

    /// Whether the receiver at port `to` gets a frame of a VLAN with this front and `behind` bytes more: by the port's rules and
    /// its driver's wishes. If the rules have nothing against it, it has the port's form from then on. And who is to get a copy
    /// of it. What speaks against it is counted. None: nobody is there.
    pub(super) fn judge_for(
        &self,
        to: usize,
        receiver: &Device,
        front: &mut Front,
        behind: u32,
        (vlan, form): (Vlan, Form),
        now: u64,
    ) -> Option<(bool, PortSet)> {
        let counters = receiver.shared().counters();
        if !receiver.running() {
            if !front.destination().is_multicast() {
                counters.rx_not_running.add(1);
            }
            return None;
        }
        let mut mirrors = PortSet::NONE;
        if let Some(policy) = self.rules.leaving(to) {
            front.shape(Form::Untagged, vlan);
            let len = (front.frame().len() as u32).saturating_add(behind);
            if let Err(refusal) = policy.leave(front.frame(), vlan, len, now, &mut mirrors) {
                refusal.leaving(counters).add(1);
                return Some((false, mirrors));
            }
        }
        front.shape(form, vlan);
        let wanted = self.wants(to, front.destination(), front.vlan());
        if !wanted {
            counters.rx_not_wanted.add(1);
        }
        Some((wanted, mirrors))
    }

    /// Gives copies of a frame from `port` as it is to the ports of `mirrors`. None is asked what
    /// frames it takes.
    fn mirror(&mut self, devices: &mut Devices, port: usize, queue: u16, frame: &mut Frame<'_>, mirrors: PortSet) {
        for to in mirrors {
            let Some((sender, receiver)) = devices.pair(port, to) else { continue };
            if receiver.running() {
                self.give_whatever(frame, sender.memory(), receiver, to, queue);
            } else {
                receiver.shared().counters().rx_not_running.add(1);
            }
        }
    }

    /// Gives a frame that was sent on queue `sent_on` to the receiver at port `to`, as it is or with that done which it cannot
    /// do, and counts what became of it.
    fn give_whatever(
        &mut self,
        frame: &mut Frame<'_>,
        sender: &GuestMemory,
        receiver: &mut Device,
        to: usize,
        sent_on: u16,
    ) {
        let queue = self.receive_queue(receiver, to, sent_on);
        let given = match self.accept(frame.longest(), to) {
            Ok(()) if !Can::driver(receiver.features()).take(&frame.asked()) => {
                return self.give_done(frame, sender, receiver, queue);
            }
            Ok(()) => self.give(frame, sender, receiver, queue),
            Err(refused) => Err(refused),
        };
        count_given(receiver.shared().counters(), frame.len(), given);
    }

    /// Puts a frame as it is into the receiver's buffers.
    fn give(
        &mut self,
        frame: &mut Frame<'_>,
        sender: &GuestMemory,
        receiver: &mut Device,
        queue: u16,
    ) -> Result<(), Refused> {
        let need = need(frame.len());
        let mut buffers = Buffers::new();
        gather(&mut self.posted, receiver, queue, need, &mut buffers)?;
        let mut to = Cursor::new(self.posted.all());
        put(receiver, &mut to, frame.front_for(buffers.len() as u16)).ok_or(None)?;
        let (mut from, left) = frame.rest();
        if copy(&mut from, sender, &mut to, receiver.memory(), left).is_none() {
            // Buffers were checked when they were taken; what is left is a guest with two ports whose buffers overlap.
            receiver.fail(Fault::Buffer);
            return Err(None);
        }
        complete(receiver, &mut buffers, need);
        Ok(())
    }
}

/// Counts what became of a frame of `len` bytes at its receiver.
pub(super) fn count_given(counters: &PortCounters, len: u32, given: Result<(), Refused>) {
    match given {
        Ok(()) => {
            counters.rx_packets.add(1);
            counters.rx_bytes.add(u64::from(len));
        }
        Err(Some(cause)) => cause(counters).add(1),
        Err(None) => {}
    }
}

/// Copies `left` bytes from guest to guest.
pub(super) fn copy(
    from: &mut Cursor<'_>,
    sender: &GuestMemory,
    to: &mut Cursor<'_>,
    receiver: &GuestMemory,
    mut left: usize,
) -> Option<()> {
    while left != 0 {
        let n = from.contiguous().min(to.contiguous()).min(left);
        let ((src, n), (dst, _)) = (from.run(n)?, to.run(n)?);
        receiver.copy_from(dst, sender, src, n as u64).ok()?;
        left -= n;
    }
    Some(())
}
