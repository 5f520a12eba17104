//! What an uplink's NIC is to let in.
//!
//! Unicasts for the guests that are behind it, where it is known which these are: each may send under no other addresses than the
//! configured ones. With one that may send under any, with too many addresses, or where somebody is shown what comes, all are let in.
//!
//! A guest's device has a receive queue of its own where the NIC chooses queues by addresses: the one after its port's number. By
//! which queue a frame comes is believed of no NIC; the switch says whose it is.
//!
//! Multicasts that the drivers of these guests asked for by their control queues. With one that wants all, or has not said, with
//! too many groups, or where somebody is shown what comes for a guest, all are let in.

use nic::Unicast;

use super::forward::Bridge;
use crate::backend::Devices;
use crate::switch::Mac;

/// Addresses that are told apart at most: what an 82599 can, besides its own.
const MOST: usize = 127;
/// Groups that are told apart at most.
const MOST_GROUPS: usize = 128;

/// What is wanted of an uplink.
#[derive(Default)]
pub(super) struct Wanted {
    unicasts: heapless::Vec<Unicast, MOST>,
    promiscuous: bool,
    groups: heapless::Vec<[u8; 6], MOST_GROUPS>,
    all_groups: bool,
}

impl Wanted {
    /// For the NIC.
    pub(super) fn wanted(&self) -> nic::ReceiveFilter<'_> {
        let Self { unicasts, promiscuous, groups, all_groups } = self;
        nic::ReceiveFilter { unicasts, promiscuous: *promiscuous, groups, all_groups: *all_groups }
    }

    /// Adds an address of the device at a port. False: there is no room.
    fn add_unicast(&mut self, mac: Mac, port: usize) -> bool {
        let new = Unicast { address: mac.bytes(), queue: port as u16 + 1 };
        self.unicasts.iter().any(|known| known.address == new.address) || self.unicasts.push(new).is_ok()
    }

    /// Adds a group. False: there is no room.
    fn add_group(&mut self, mac: Mac) -> bool {
        self.groups.contains(&mac.bytes()) || self.groups.push(mac.bytes()).is_ok()
    }
}

impl Bridge {
    /// What is to come by an uplink.
    pub(super) fn wanted(&self, devices: &Devices, uplink: usize) -> Wanted {
        let mut all = Wanted::default();
        let watched = self.exits.policy(uplink).is_some_and(|policy| policy.enter.mirrors());
        (all.promiscuous, all.all_groups) = (watched, watched);
        for port in devices.ports().filter(|&port| self.exits.used(port) >> uplink & 1 != 0) {
            let Some(device) = devices.get(port) else { continue };
            let policy = self.rules.get(port);
            match policy.filter(|policy| !policy.guard.macs().is_empty()) {
                Some(policy) => {
                    let own = Mac::new(device.shared().config_bytes(0));
                    let mut macs = core::iter::once(&own).chain(policy.guard.macs()).chain(&policy.fixed);
                    all.promiscuous |= !macs.all(|mac| all.add_unicast(*mac, port));
                }
                None => all.promiscuous = true,
            }
            if !device.running() {
                continue;
            }
            // What it does not want is shown to others all the same.
            let shown = policy.is_some_and(|policy| policy.leave.mirrors());
            match self.wishes(port).and_then(|wishes| wishes.groups()).filter(|_| !shown) {
                Some(groups) => all.all_groups |= !groups.iter().all(|mac| all.add_group(*mac)),
                None => all.all_groups = true,
            }
        }
        all
    }
}
