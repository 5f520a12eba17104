//! Computes the receive filter of an uplink's NIC.
//!
//! Unicast: the addresses of the guests that use the uplink, if the rules bind each guest to configured addresses. The
//! NIC accepts all unicasts if one guest may send from any address, if there are too many addresses, or if a stage
//! mirrors the frames of the uplink.
//!
//! Multicast: the groups that the drivers of these guests set through their control queues. The NIC accepts all
//! multicasts if one driver wants all or has not set any, if there are too many groups, or if a stage mirrors the
//! frames of the uplink or of a guest.
//!
//! If the NIC chooses receive queues by address, each guest's device gets its own queue: the number of its port plus 1.
//! No path relies on the queue. The switch decides who gets a frame.

use engine::devices::Devices;
use nic::Unicast;

use crate::bridge::Bridge;
use crate::mac::Mac;

/// Most unicast addresses: an 82599 has 128 filters, and one is its own address.
const MAX_ADDRESSES: usize = 127;
/// Most multicast groups.
const MAX_GROUPS: usize = 128;

/// The receive filter of one uplink.
#[derive(Default)]
pub(crate) struct NicFilter {
    unicasts: heapless::Vec<Unicast, MAX_ADDRESSES>,
    promiscuous: bool,
    groups: heapless::Vec<[u8; 6], MAX_GROUPS>,
    all_groups: bool,
}

impl NicFilter {
    /// Returns it in the form that NIC drivers take.
    pub(crate) fn as_receive_filter(&self) -> nic::ReceiveFilter<'_> {
        let Self { unicasts, promiscuous, groups, all_groups } = self;
        nic::ReceiveFilter { unicasts, promiscuous: *promiscuous, groups, all_groups: *all_groups }
    }

    /// Adds an address of the device at a port. Returns false if there is no room.
    fn add_unicast(&mut self, mac: Mac, port: usize) -> bool {
        let new = Unicast { address: mac.bytes(), queue: (port as u16).saturating_add(1) };
        self.unicasts.iter().any(|known| known.address == new.address) || self.unicasts.push(new).is_ok()
    }

    /// Adds a multicast group. Returns false if there is no room.
    fn add_group(&mut self, mac: Mac) -> bool {
        self.groups.contains(&mac.bytes()) || self.groups.push(mac.bytes()).is_ok()
    }
}

impl Bridge {
    /// Computes the receive filter of an uplink.
    pub(crate) fn nic_filter(&self, devices: &Devices, uplink: usize) -> NicFilter {
        let mut filter = NicFilter::default();
        let watched = self.uplink_choice.policy(uplink).is_some_and(|policy| policy.enter.mirrors());
        (filter.promiscuous, filter.all_groups) = (watched, watched);
        for port in self.attached.into_iter().filter(|&port| self.uplink_choice.uplinks_of(port) >> uplink & 1 != 0) {
            let Some(device) = devices.get(port) else { continue };
            let policy = self.rules.get(port);
            match policy.filter(|policy| !policy.guard.macs().is_empty()) {
                Some(policy) => {
                    let own = Mac::new(device.shared().config_bytes(0));
                    let mut macs = core::iter::once(&own).chain(policy.guard.macs()).chain(&policy.fixed);
                    filter.promiscuous |= !macs.all(|mac| filter.add_unicast(*mac, port));
                }
                None => filter.promiscuous = true,
            }
            if !device.running() {
                continue;
            }
            // A mirror also gets frames that the driver's filter refuses.
            let shown = policy.is_some_and(|policy| policy.leave.mirrors());
            match self.settings(port).and_then(|settings| settings.groups()).filter(|_| !shown) {
                Some(groups) => filter.all_groups |= !groups.iter().all(|mac| filter.add_group(*mac)),
                None => filter.all_groups = true,
            }
        }
        filter
    }
}
