//! Slow path: one frame at a time, to one port, to all ports, or to an uplink. It takes every frame that the rules
//! allow and that the fast paths ([`super::fast`], [`super::egress_fast`]) do not take.

use engine::device::Device;
use engine::devices::Devices;
use memory::GuestMemory;
use nic::Nic;
use virtio::fault::Fault;

use crate::bridge::{Bridge, Forwarding};
use crate::counters::UplinkDrop;
use crate::cursor::Cursor;
use crate::features::Features;
use crate::frame::{Frame, Front, Rejected};
use crate::offload::OffloadSupport;
use crate::path::delivery::copy;
use crate::policy::vlan::{Tagging, Vlan};
use crate::policy::{Entered, Refusal, UNCHECKED};
use crate::ports::PortSet;
use crate::receive_buffers::{Buffers, Refused, complete, need, put};
use crate::switch::Learned;
use crate::uplink::held::Held;
use crate::uplink::{EgressRoute, Uplink};
use crate::watch::Step;
use crate::work;

impl Bridge {
    /// Applies the rules of the sender's port to a frame. Removes the tag of its VLAN. Delivers copies to mirrors even
    /// if the frame is refused.
    /// Returns the VLAN of the frame, or why it is refused.
    pub(crate) fn admit(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        now: u64,
    ) -> Result<Vlan, Rejected> {
        if frame.front().source().is_multicast() {
            return Err(Rejected::Source);
        }
        let Some(policy) = self.rules.get(port) else { return Ok(UNCHECKED.vlan) };
        if !policy.checks_neighbours_only() {
            self.add_work(work::RULES);
        }
        let mut mirrors = PortSet::NONE;
        let entered = policy.enter(frame.front().frame(), frame.len(), now, &mut mirrors);
        if mirrors != PortSet::NONE {
            self.mirror(devices, port, queue, frame, mirrors);
        }
        let Entered { vlan, tag } = entered.map_err(Rejected::Refused)?;
        if let Some(tag) = tag {
            frame.front_mut().set_tag(tag);
            frame.front_mut().retag(Tagging::Untagged, vlan);
        }
        Ok(vlan)
    }

    /// Forwards a frame of `vlan` from `port` to the guests that it is addressed to. `egress`: the route to the uplink
    /// of that port and VLAN, if there is one.
    /// Returns the route if the frame must go to the uplink too, or only there.
    #[allow(clippy::too_many_arguments, reason = "a frame, where it comes from, and where it may go")]
    pub(crate) fn forward(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        vlan: Vlan,
        egress: Option<EgressRoute>,
        now: u64,
    ) -> Option<EgressRoute> {
        if self.switch.learn(frame.front().source(), vlan, port, now) == Learned::Fixed {
            self.drop_frame(port, Refusal::Mac.entering(self.counters(port)), frame.len());
            return None;
        }
        let destination = frame.front().destination();
        let forwarding = self.forwarding(destination, vlan, Some(port), egress, now);
        if self.is_watched() {
            self.show_step(Step::Switched(forwarding.destination()), port, frame.len());
        }
        let found = match forwarding {
            Forwarding::Uplink => return egress,
            Forwarding::Nowhere => false,
            // If the receiver is known, a drop is counted there, whatever the cause.
            Forwarding::Port(to) => {
                self.deliver_to_port(devices, port, queue, frame, vlan, to, now);
                true
            }
            Forwarding::Flood => {
                if let Some(refusal) = self.rules.get(port).and_then(|policy| policy.flood(now).err()) {
                    self.drop_frame(port, refusal.entering(self.counters(port)), frame.len());
                    return None;
                }
                let mut found = false;
                for to in self.attached.into_iter().filter(|&to| to != port) {
                    if self.work >= work::MOST {
                        self.drop_frame(port, &self.counters(port).drops.tx_cut_short, frame.len());
                        break;
                    }
                    found |= self.deliver_to_port(devices, port, queue, frame, vlan, to, now);
                }
                found
            }
        };
        let leaves = egress.filter(|_| destination.is_multicast() && !destination.is_reserved());
        if !found && leaves.is_none() {
            self.drop_frame(port, &self.counters(port).drops.tx_no_destination, frame.len());
        }
        leaves
    }

    /// Applies the rules of an uplink to a frame from `port`. Adds or removes the tag, as the uplink's rules say.
    /// Returns whether the frame may leave.
    #[allow(clippy::too_many_arguments, reason = "a frame, where it comes from, and where it goes")]
    pub(crate) fn check_egress<N: Nic<Token = Held>>(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        egress_route: EgressRoute,
        uplink: &Uplink<N>,
        now: u64,
    ) -> bool {
        let mut mirrors = PortSet::NONE;
        let mut passes = true;
        if let Some(policy) = uplink.policy().filter(|policy| !policy.leave.is_empty()) {
            frame.front_mut().retag(Tagging::Untagged, egress_route.vlan);
            passes = policy.leave(frame.front().frame(), egress_route.vlan, frame.len(), now, &mut mirrors).is_ok();
        }
        frame.front_mut().retag(egress_route.tagging, egress_route.vlan);
        self.mirror(devices, port, queue, frame, mirrors);
        if !passes {
            uplink.drop_frame(UplinkDrop::Denied, frame.len(), frame.front().frame());
        }
        passes
    }

    /// Delivers a frame of `vlan` from `port` to port `to`, and counts the result.
    /// Returns false if no running device of this VLAN is at `to`.
    #[allow(clippy::too_many_arguments, reason = "a frame, where it comes from, and where it goes")]
    fn deliver_to_port(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        frame: &mut Frame<'_>,
        vlan: Vlan,
        to: usize,
        now: u64,
    ) -> bool {
        self.add_work(work::PORT);
        let Some(tagging) = self.rules.tagging(to, vlan) else { return false };
        let Some((sender, receiver)) = devices.pair(port, to) else { return false };
        self.add_work(if self.rules.leaving(to).is_some() { work::LEAVING_RULES } else { 0 });
        let behind = frame.behind();
        let Some((accepted, mirrors)) =
            self.check_delivery(to, receiver, frame.front_mut(), behind, (vlan, tagging), now)
        else {
            return false;
        };
        if accepted {
            self.deliver(frame, (sender.memory(), port), receiver, to, queue);
        }
        self.mirror(devices, port, queue, frame, mirrors);
        true
    }

    /// Checks whether the receiver at port `to` takes a frame of a VLAN with these first bytes and `behind` bytes more.
    /// Applies the rules of the port and the receive filter of its driver, and counts a refusal. A frame that the rules
    /// pass gets the tagging of the port.
    /// Returns whether it is accepted, and the ports that get a copy by a mirror. `None`: no running device is at `to`.
    pub(crate) fn check_delivery(
        &self,
        to: usize,
        receiver: &Device,
        front: &mut Front,
        behind: u32,
        (vlan, tagging): (Vlan, Tagging),
        now: u64,
    ) -> Option<(bool, PortSet)> {
        let counters = self.counters(to);
        let len = |front: &Front| (front.frame().len() as u32).saturating_add(behind);
        if !receiver.running() {
            if !front.destination().is_multicast() {
                self.drop_at_receiver(to, &counters.drops.rx_not_running, len(front), || front.frame());
            }
            return None;
        }
        let mut mirrors = PortSet::NONE;
        if let Some(policy) = self.rules.leaving(to) {
            front.retag(Tagging::Untagged, vlan);
            let len = len(front);
            if let Err(refusal) = policy.leave(front.frame(), vlan, len, now, &mut mirrors) {
                self.drop_at_receiver(to, refusal.leaving(counters), len, || front.frame());
                return Some((false, mirrors));
            }
        }
        front.retag(tagging, vlan);
        let accepted = self.accepts(to, front.destination(), front.vlan());
        if !accepted {
            counters.frames.rx_not_wanted.add(1);
        }
        Some((accepted, mirrors))
    }

    /// Delivers copies of a frame from `port` to the ports of `mirrors`. The receive filters of those ports are not
    /// applied.
    fn mirror(&mut self, devices: &mut Devices, port: usize, queue: u16, frame: &mut Frame<'_>, mirrors: PortSet) {
        for to in mirrors {
            let Some((sender, receiver)) = devices.pair(port, to) else { continue };
            if receiver.running() {
                self.deliver(frame, (sender.memory(), port), receiver, to, queue);
            } else {
                let cause = &self.counters(to).drops.rx_not_running;
                self.drop_at_receiver(to, cause, frame.len(), || frame.front().frame());
            }
        }
    }

    /// Delivers a frame that port `from` sent on queue `sent_on` to port `to`, and counts the result. Does the offloads that
    /// the receiver cannot do.
    fn deliver(
        &mut self,
        frame: &mut Frame<'_>,
        (sender, from): (&GuestMemory, usize),
        receiver: &mut Device,
        to: usize,
        sent_on: u16,
    ) {
        let queue = self.receive_queue(receiver, to, sent_on);
        let delivered = match self.check_size(frame.longest(), to) {
            Ok(()) if !OffloadSupport::driver(Features::of(receiver)).accepts(&frame.request()) => {
                if self.deliver_offloaded(frame, sender, receiver, to, queue).is_none() {
                    self.drop_frame(from, &self.counters(from).drops.tx_cut_short, frame.len());
                }
                return;
            }
            Ok(()) => self.deliver_unchanged(frame, sender, receiver, queue),
            Err(refused) => Err(refused),
        };
        let pieces = frame.rest().0.pieces() as u32;
        match delivered {
            Ok(()) => {
                self.add_work(work::COPY);
                self.add_work(work::times(pieces, work::PIECE));
                self.add_work(work::copied(frame.len()));
            }
            Err(_) => self.add_work(work::REFUSED_COPY),
        }
        self.count_delivery(to, frame.len(), delivered, || frame.front().frame());
    }

    /// Writes a frame into the receiver's buffers as it is.
    fn deliver_unchanged(
        &mut self,
        frame: &mut Frame<'_>,
        sender: &GuestMemory,
        receiver: &mut Device,
        queue: u16,
    ) -> Result<(), Refused> {
        let need = need(frame.len());
        let mut buffers = Buffers::new();
        self.gather(receiver, queue, need, &mut buffers)?;
        let mut to = Cursor::new(self.posted.all());
        put(receiver, &mut to, frame.front_for(buffers.len() as u16)).ok_or(None)?;
        let (mut from, left) = frame.rest();
        if copy(&mut from, sender, &mut to, receiver.memory(), left).is_none() {
            // The buffers were checked when they were taken. This can still fail if a guest has two ports whose buffers
            // overlap.
            receiver.fail(Fault::Buffer);
            return Err(None);
        }
        complete(receiver, &mut buffers, need);
        Ok(())
    }
}
