//! The way from the wire to guests: one copy, out of the NIC's buffers into the receiver's.

use nic::{Checked, Received};

use super::buffers::{Buffers, Cursor, Refused, complete, gather, need, put};
use super::forward::{Bridge, Route, count_given};
use super::frame::Front;
use super::{ETHERNET_BYTES, HEADER_BYTES};
use crate::backend::Devices;
use crate::device::Device;
use crate::offload::{Can, received_header};
use crate::policy::vlan::{Form, Vlan};
use crate::policy::{Entered, UNCHECKED};
use crate::ports::PortSet;
use crate::stats::UplinkCounters;

/// A frame from the wire: its first bytes, in which its tag may come and go, and the others where the NIC has put them.
pub(super) struct Arrived<'a> {
    front: Front,
    received: &'a Received<'a>,
    /// Bytes of it that are in the front.
    copied: usize,
}

impl<'a> Arrived<'a> {
    fn new(received: &'a Received<'a>) -> Self {
        let mut front = Front::new(received.len());
        let mut bytes = received.pieces.iter().copied().flatten();
        let mut copied = 0;
        for (to, &from) in front.all_mut().iter_mut().skip(HEADER_BYTES).zip(&mut bytes) {
            *to = from;
            copied += 1;
        }
        if let Some(tag) = received.vlan {
            // The NIC has taken it out; for the rules it is there.
            front.restore(tag);
        }
        Self { front, received, copied }
    }

    /// Bytes of it that are not in the front.
    fn behind(&self) -> u32 {
        u32::try_from(self.received.len().saturating_sub(self.copied)).unwrap_or(u32::MAX)
    }

    fn len(&self) -> u32 {
        (self.front.frame().len() as u32).saturating_add(self.behind())
    }
}

impl Bridge {
    /// Gives a frame that has come by `uplink` to the guests that it is for.
    pub(super) fn arrive(
        &mut self,
        devices: &mut Devices,
        received: &Received<'_>,
        uplink: usize,
        counters: &UplinkCounters,
        now: u64,
    ) {
        let mut frame = Arrived::new(received);
        let (destination, source) = (frame.front.destination(), frame.front.source());
        if frame.len() < ETHERNET_BYTES || source.is_multicast() {
            return counters.rx_malformed.add(1);
        }
        let mut mirrors = PortSet::NONE;
        let policy = self.exits.policy(uplink);
        let entered = match policy {
            Some(policy) => policy.enter(frame.front.frame(), frame.len(), now, &mut mirrors),
            None => Ok(UNCHECKED),
        };
        self.mirror_received(devices, &mut frame, mirrors);
        let Ok(Entered { vlan, tag }) = entered else { return counters.rx_refused.add(1) };
        if let Some(tag) = tag {
            frame.front.bears(tag);
            frame.front.shape(Form::Untagged, vlan);
        }
        if self.switch.lookup(source, vlan, now).is_some() {
            // A guest's address from outside: a loop, or somebody who pretends to be it.
            return counters.rx_own_source.add(1);
        }
        match self.route(destination, vlan, None, None, now) {
            Route::Port(to) if self.exits.leads(uplink, to, vlan) => {
                self.give_received_to(devices, &mut frame, vlan, to, now);
            }
            Route::Flood if destination.is_multicast() => {
                if policy.is_some_and(|policy| policy.flood(now).is_err()) {
                    return counters.rx_refused.add(1);
                }
                for to in devices.ports() {
                    if self.exits.leads(uplink, to, vlan) {
                        self.give_received_to(devices, &mut frame, vlan, to, now);
                    }
                }
            }
            Route::Port(_) | Route::Flood | Route::Nowhere | Route::Out => counters.rx_not_ours.add(1),
        }
    }

    /// Gives a frame from the wire to `to`, and counts what becomes of it.
    fn give_received_to(&mut self, devices: &mut Devices, frame: &mut Arrived<'_>, vlan: Vlan, to: usize, now: u64) {
        let Some(form) = self.rules.form(to, vlan) else { return };
        let Some(receiver) = devices.get_mut(to) else { return };
        let behind = frame.behind();
        let judged = self.judge_for(to, receiver, &mut frame.front, behind, (vlan, form), now);
        let Some((gets, mirrors)) = judged else { return };
        if gets {
            self.give_received_counted(frame, receiver, to);
        }
        self.mirror_received(devices, frame, mirrors);
    }

    /// Gives copies of a frame from the wire as it is to the ports of `mirrors`.
    fn mirror_received(&mut self, devices: &mut Devices, frame: &mut Arrived<'_>, mirrors: PortSet) {
        for to in mirrors {
            let Some(receiver) = devices.get_mut(to) else { continue };
            if receiver.running() {
                self.give_received_counted(frame, receiver, to);
            } else {
                receiver.shared().counters().rx_not_running.add(1);
            }
        }
    }

    /// Gives a frame from the wire as it is to the receiver at port `to`, and counts what became of it.
    fn give_received_counted(&mut self, frame: &mut Arrived<'_>, receiver: &mut Device, to: usize) {
        let given = self.accept(frame.len(), to).and_then(|()| self.give_received(frame, receiver));
        count_given(receiver.shared().counters(), frame.len(), given);
    }

    /// Puts a frame from the wire into the receiver's buffers.
    fn give_received(&mut self, frame: &mut Arrived<'_>, receiver: &mut Device) -> Result<(), Refused> {
        let need = need(frame.len());
        let mut buffers = Buffers::new();
        gather(&mut self.posted, receiver, 0, need, &mut buffers)?;
        let valid = frame.received.checked == Checked::Good && Can::driver(receiver.features()).checksum;
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
