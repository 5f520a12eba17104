//! Path from an uplink to guests: one copy, from the NIC's buffers into the receiver's.

use engine::device::Device;
use engine::devices::Devices;
use nic::{Checked, Received};

use crate::bridge::{Bridge, Forwarding};
use crate::counters::{UplinkCounters, UplinkDrop};
use crate::cursor::Cursor;
use crate::ethernet::ETHERNET_BYTES;
use crate::features::Features;
use crate::frame::Front;
use crate::offload::{HEADER_BYTES, OffloadSupport, received_header};
use crate::policy::vlan::{Tagging, Vlan};
use crate::policy::{Entered, UNCHECKED};
use crate::ports::PortSet;
use crate::receive_buffers::{Buffers, Refused, complete, gather, need, put};
use crate::watch::UplinkStep;

/// A frame from the wire. Its first bytes are copied, so that a tag can be added or removed. The other bytes stay in
/// the NIC's buffers.
pub(crate) struct IngressFrame<'a> {
    front: Front,
    received: &'a Received<'a>,
    /// Bytes of the frame that are in `front`.
    copied: usize,
}

impl<'a> IngressFrame<'a> {
    pub(crate) fn new(received: &'a Received<'a>) -> Self {
        let mut front = Front::new(received.len());
        let mut bytes = received.pieces.iter().copied().flatten();
        let mut copied: usize = 0;
        for (to, &from) in front.all_mut().iter_mut().skip(HEADER_BYTES).zip(&mut bytes) {
            *to = from;
            copied = copied.saturating_add(1);
        }
        if let Some(tag) = received.vlan {
            // The NIC removed the tag. The rules see the frame with it.
            front.restore(tag);
        }
        Self { front, received, copied }
    }

    /// Returns the frame's first bytes.
    pub(crate) fn first(&self) -> &[u8] {
        self.front.frame()
    }

    /// Returns the bytes of the frame that are not in `front`.
    fn behind(&self) -> u32 {
        u32::try_from(self.received.len().saturating_sub(self.copied)).unwrap_or(u32::MAX)
    }

    pub(crate) fn len(&self) -> u32 {
        (self.front.frame().len() as u32).saturating_add(self.behind())
    }
}

impl Bridge {
    /// Forwards a frame from `uplink` to the guests that it is addressed to. `watched`: somebody wants to see each frame.
    pub(crate) fn ingress(
        &mut self,
        devices: &mut Devices,
        received: &Received<'_>,
        uplink: usize,
        counters: &UplinkCounters,
        now: u64,
        watched: bool,
    ) {
        if watched {
            self.show_at_uplink(uplink, UplinkStep::Received(now), received);
        }
        let dropped = |bridge: &Self, drop| bridge.drop_from_wire(uplink, counters, drop, received, now);
        let mut frame = IngressFrame::new(received);
        let (destination, source) = (frame.front.destination(), frame.front.source());
        if frame.len() < ETHERNET_BYTES || source.is_multicast() {
            return dropped(self, UplinkDrop::Malformed);
        }
        let mut mirrors = PortSet::NONE;
        let policy = self.uplink_choice.policy(uplink);
        let entered = match policy {
            Some(policy) => policy.enter(frame.front.frame(), frame.len(), now, &mut mirrors),
            None => Ok(UNCHECKED),
        };
        self.mirror_received(devices, &mut frame, mirrors);
        let Ok(Entered { vlan, tag }) = entered else { return dropped(self, UplinkDrop::Refused) };
        if let Some(tag) = tag {
            frame.front.set_tag(tag);
            frame.front.retag(Tagging::Untagged, vlan);
        }
        if self.switch.lookup(source, vlan, now).is_some() {
            // A frame from outside has a guest's address as its source: there is a forwarding loop, or a host that
            // pretends to be the guest.
            return dropped(self, UplinkDrop::OwnSource);
        }
        let forwarding = match self.forwarding(destination, vlan, None, None, now) {
            Forwarding::Port(to) if !self.uplink_choice.serves(uplink, to, vlan) => Forwarding::Nowhere,
            Forwarding::Flood if !destination.is_multicast() => Forwarding::Nowhere,
            other => other,
        };
        if watched {
            self.show_at_uplink(uplink, UplinkStep::Switched(forwarding.destination()), received);
            if matches!(forwarding, Forwarding::Port(_)) {
                self.show_from_wire(uplink, received, now, None);
            }
        }
        match forwarding {
            Forwarding::Port(to) => {
                self.deliver_received_to_port(devices, &mut frame, vlan, to, now);
            }
            Forwarding::Flood => {
                if policy.is_some_and(|policy| policy.flood(now).is_err()) {
                    return dropped(self, UplinkDrop::Refused);
                }
                if watched {
                    self.show_from_wire(uplink, received, now, None);
                }
                for to in self.attached {
                    if self.uplink_choice.serves(uplink, to, vlan) {
                        self.deliver_received_to_port(devices, &mut frame, vlan, to, now);
                    }
                }
            }
            Forwarding::Nowhere | Forwarding::Uplink => dropped(self, UplinkDrop::NotOurs),
        }
    }

    /// Delivers a frame from the wire to port `to`, and counts the result.
    fn deliver_received_to_port(
        &mut self,
        devices: &mut Devices,
        frame: &mut IngressFrame<'_>,
        vlan: Vlan,
        to: usize,
        now: u64,
    ) {
        let Some(tagging) = self.rules.tagging(to, vlan) else { return };
        let Some(receiver) = devices.get_mut(to) else { return };
        let behind = frame.behind();
        let checked = self.check_delivery(to, receiver, &mut frame.front, behind, (vlan, tagging), now);
        let Some((accepted, mirrors)) = checked else { return };
        if accepted {
            self.deliver_received(frame, receiver, to);
        }
        self.mirror_received(devices, frame, mirrors);
    }

    /// Delivers copies of a frame from the wire to the ports of `mirrors`.
    fn mirror_received(&mut self, devices: &mut Devices, frame: &mut IngressFrame<'_>, mirrors: PortSet) {
        for to in mirrors {
            let Some(receiver) = devices.get_mut(to) else { continue };
            if receiver.running() {
                self.deliver_received(frame, receiver, to);
            } else {
                let cause = &self.counters(to).drops.rx_not_running;
                self.drop_at_receiver(to, cause, frame.len(), || frame.front.frame());
            }
        }
    }

    /// Delivers a frame from the wire to port `to` without applying its rules, and counts the result.
    fn deliver_received(&mut self, frame: &mut IngressFrame<'_>, receiver: &mut Device, to: usize) {
        let delivered = self.check_size(frame.len(), to).and_then(|()| self.copy_received(frame, receiver));
        self.count_delivery(to, frame.len(), delivered, || frame.front.frame());
    }

    /// Writes a frame from the wire into the receiver's buffers.
    fn copy_received(&mut self, frame: &mut IngressFrame<'_>, receiver: &mut Device) -> Result<(), Refused> {
        let need = need(frame.len());
        let mut buffers = Buffers::new();
        gather(&mut self.posted, receiver, 0, need, &mut buffers)?;
        let valid = frame.received.checked == Checked::Good && OffloadSupport::driver(Features::of(receiver)).checksum;
        frame.front.set_header(&received_header(valid, buffers.len() as u16));
        let mut to = Cursor::new(self.posted.all());
        put(receiver, &mut to, frame.front.all()).ok_or(None)?;
        let mut skip = frame.copied;
        for piece in frame.received.pieces {
            let rest = piece.get(skip..).unwrap_or(&[]);
            skip = skip.saturating_sub(piece.len());
            put(receiver, &mut to, rest).ok_or(None)?;
        }
        complete(receiver, &mut buffers, need);
        Ok(())
    }
}
