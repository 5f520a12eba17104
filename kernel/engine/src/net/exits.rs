//! Which uplink is whose.
//!
//! The frames of a VLAN leave a port by one uplink and come to it from there alone: by the one that the port is kept to, or
//! else by the first that is in the VLAN. Nothing goes from one uplink to another, nothing leaves twice, and what comes by two
//! ways is given once; so two uplinks may end in the same network, and no loop can arise. Nothing is learned of who is outside.
//! A NIC that is not there or has no link keeps its place: no guest's frames turn to another network because a cable was drawn.

use crate::backend::MAX_PORTS;
use crate::policy::vlan::{Form, MAX_VLAN, PLAIN, Vlan};
use crate::policy::{Policy, carries};
use crate::uplink::MAX_UPLINKS;

/// The uplinks' rules, and each port's choice.
pub(super) struct Exits {
    rules: heapless::Vec<Option<&'static Policy>, MAX_UPLINKS>,
    /// The uplink that a port is kept to.
    kept: [Option<u8>; MAX_PORTS],
    /// Uplinks that a port's frames may leave by, in one VLAN or another: a bit each.
    used: [u8; MAX_PORTS],
}

const _: () = assert!(MAX_UPLINKS <= u8::BITS as usize);

impl Exits {
    pub(super) const fn new() -> Self {
        Self { rules: heapless::Vec::new(), kept: [None; MAX_PORTS], used: [0; MAX_PORTS] }
    }

    /// Adds an uplink behind those that there are. Its number; None: there are as many as there can be.
    pub(super) fn add(&mut self, policy: Option<&'static Policy>) -> Option<usize> {
        self.rules.push(policy).ok().map(|()| self.rules.len() - 1)
    }

    /// The rules of an uplink.
    pub(super) fn policy(&self, uplink: usize) -> Option<&'static Policy> {
        self.rules.get(uplink).copied().flatten()
    }

    /// A device is at a port now, with these rules, and is kept to that uplink.
    pub(super) fn attach(&mut self, port: usize, policy: Option<&Policy>, uplink: Option<u8>) {
        if port < MAX_PORTS {
            self.kept[port] = uplink;
            let own = (PLAIN..=MAX_VLAN).filter(|&vlan| carries(policy, vlan).is_some());
            self.used[port] = own.filter_map(|vlan| self.find(port, vlan)).fold(0, |used, (n, _)| used | 1 << n);
        }
    }

    /// None is there any more.
    pub(super) fn detach(&mut self, port: usize) {
        if port < MAX_PORTS {
            (self.kept[port], self.used[port]) = (None, 0);
        }
    }

    /// Uplinks that the frames of a port may leave by: a bit each.
    pub(super) fn used(&self, port: usize) -> u8 {
        self.used.get(port).copied().unwrap_or(0)
    }

    /// The uplink by which frames of a VLAN leave from a port and come to it, and in which form.
    #[inline]
    pub(super) fn find(&self, port: usize, vlan: Vlan) -> Option<(usize, Form)> {
        let form = |n: usize, policy: Option<&Policy>| Some((n, carries(policy, vlan)?));
        match self.kept.get(port).copied().flatten() {
            Some(kept) => form(kept.into(), *self.rules.get(usize::from(kept))?),
            None => self.rules.iter().enumerate().find_map(|(n, policy)| form(n, *policy)),
        }
    }

    /// Whether frames of a VLAN come to a port from this uplink.
    #[inline]
    pub(super) fn leads(&self, uplink: usize, port: usize, vlan: Vlan) -> bool {
        self.find(port, vlan).is_some_and(|(found, _)| found == uplink)
    }
}
