//! Chooses the uplink of each port and VLAN.
//!
//! A port uses the uplink that it is pinned to, or else the first uplink that is in the VLAN. Its frames leave through
//! that uplink only, and frames from outside reach it through that uplink only.
//!
//! This makes forwarding loops impossible, so two uplinks may be connected to the same network:
//!
//! - No frame goes from one uplink to another.
//! - No frame leaves twice.
//! - A frame that arrives through two uplinks is delivered once.
//! - Addresses outside the machine are not learned.
//!
//! A NIC that is missing or has no link keeps its place. A guest's frames do not change to another network because a
//! cable was pulled.

use crate::policy::vlan::{MAX_VLAN, PLAIN, Tagging, Vlan};
use crate::policy::{Policy, carries};
use crate::ports::MAX_PORTS;
use crate::uplink::MAX_UPLINKS;

/// The rules of the uplinks, and the choice of each port.
pub(crate) struct UplinkChoice {
    policies: heapless::Vec<Option<&'static Policy>, MAX_UPLINKS>,
    /// The uplink that each port is pinned to.
    pinned: [Option<u8>; MAX_PORTS],
    /// Uplinks that each port uses in at least one VLAN, as a bit mask.
    uplinks: [u8; MAX_PORTS],
}

const _: () = assert!(MAX_UPLINKS <= u8::BITS as usize);

impl UplinkChoice {
    pub(crate) const fn new() -> Self {
        Self { policies: heapless::Vec::new(), pinned: [None; MAX_PORTS], uplinks: [0; MAX_PORTS] }
    }

    /// Adds an uplink. Returns false if there are [`MAX_UPLINKS`].
    pub(crate) fn add(&mut self, policy: Option<&'static Policy>) -> bool {
        self.policies.push(policy).is_ok()
    }

    /// Returns the rules of an uplink.
    pub(crate) fn policy(&self, uplink: usize) -> Option<&'static Policy> {
        self.policies.get(uplink).copied().flatten()
    }

    /// Connects a device with these rules to a port, and pins it to an uplink.
    pub(crate) fn attach(&mut self, port: usize, policy: Option<&Policy>, uplink: Option<u8>) {
        if let Some(pinned) = self.pinned.get_mut(port) {
            *pinned = uplink;
            let own = (PLAIN..=MAX_VLAN).filter(|&vlan| carries(policy, vlan).is_some());
            let chosen = own.filter_map(|vlan| self.choose(port, vlan)).fold(0, |uplinks, (n, _)| uplinks | 1 << n);
            if let Some(uplinks) = self.uplinks.get_mut(port) {
                *uplinks = chosen;
            }
        }
    }

    /// Disconnects the device of a port.
    pub(crate) fn detach(&mut self, port: usize) {
        if let (Some(pinned), Some(uplinks)) = (self.pinned.get_mut(port), self.uplinks.get_mut(port)) {
            (*pinned, *uplinks) = (None, 0);
        }
    }

    /// Returns the uplinks that a port uses in at least one VLAN, as a bit mask.
    pub(crate) fn uplinks_of(&self, port: usize) -> u8 {
        self.uplinks.get(port).copied().unwrap_or(0)
    }

    /// Returns the uplink of a port in a VLAN, and how it tags their frames. `None`: the port has no uplink in that
    /// VLAN.
    #[inline]
    pub(crate) fn choose(&self, port: usize, vlan: Vlan) -> Option<(usize, Tagging)> {
        let tagging = |n: usize, policy: Option<&Policy>| Some((n, carries(policy, vlan)?));
        match self.pinned.get(port).copied().flatten() {
            Some(pinned) => tagging(pinned.into(), *self.policies.get(usize::from(pinned))?),
            None => self.policies.iter().enumerate().find_map(|(n, policy)| tagging(n, *policy)),
        }
    }

    /// Returns whether a port gets the frames of a VLAN from this uplink.
    #[inline]
    pub(crate) fn serves(&self, uplink: usize, port: usize, vlan: Vlan) -> bool {
        self.choose(port, vlan).is_some_and(|(found, _)| found == uplink)
    }
}
