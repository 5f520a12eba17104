//! Whose unicasts an uplink's NIC is to let in.
//!
//! Those of the guests that are behind it, where it is known which these are: each may send under no other addresses than the
//! configured ones. With one that may send under any, with too many addresses, or where somebody is shown what comes, all are let in.

use super::forward::Bridge;
use crate::backend::Devices;
use crate::switch::Mac;

/// Addresses that are told apart at most: what an 82599 can, besides its own.
const MOST: usize = 127;

/// The addresses; None: not known, or too many.
pub(super) type Wanted = Option<heapless::Vec<[u8; 6], MOST>>;

impl Bridge {
    /// Whose unicasts are to come by an uplink.
    pub(super) fn wanted(&self, devices: &Devices, uplink: usize) -> Wanted {
        if self.exits.policy(uplink).is_some_and(|policy| policy.enter.mirrors()) {
            return None;
        }
        let mut all = heapless::Vec::new();
        for port in devices.ports().filter(|&port| self.exits.used(port) >> uplink & 1 != 0) {
            let policy = self.rules.get(port).filter(|policy| !policy.guard.macs().is_empty())?;
            let own = devices.get(port).map(|device| Mac::new(device.shared().config_bytes(0)));
            for mac in own.iter().chain(policy.guard.macs()).chain(&policy.fixed).map(|mac| mac.bytes()) {
                if !all.contains(&mac) {
                    all.push(mac).ok()?;
                }
            }
        }
        Some(all)
    }
}
