//! Which ports have rules, and which frames may go the fast way all the same.

use crate::backend::MAX_PORTS;
use crate::policy::vlan::{Form, Vlan};
use crate::policy::{Policy, carries};
use crate::switch::Mac;

/// The rules of the ports. One without any is not asked.
pub(super) struct Ports {
    policies: [Option<&'static Policy>; MAX_PORTS],
    /// A bit for each port that has rules by which more is looked at than addresses.
    looks: u32,
}

impl Ports {
    pub(super) const fn new() -> Self {
        Self { policies: [None; MAX_PORTS], looks: 0 }
    }

    /// Gives a port rules, or takes them away.
    pub(super) fn set(&mut self, port: usize, policy: Option<&'static Policy>) {
        if let Some(slot) = self.policies.get_mut(port) {
            *slot = policy;
            self.looks &= !(1 << port);
            self.looks |= u32::from(policy.is_some_and(Policy::looks)) << port;
        }
    }

    /// The rules of a port.
    #[inline]
    pub(super) fn get(&self, port: usize) -> Option<&'static Policy> {
        self.policies.get(port).copied().flatten()
    }

    /// The rules of a port, if frames on their way to it are looked at.
    #[inline]
    pub(super) fn leaving(&self, port: usize) -> Option<&'static Policy> {
        self.get(port).filter(|policy| !policy.leave.is_empty())
    }

    /// How frames of a VLAN leave by a port. None: they do not.
    #[inline]
    pub(super) fn form(&self, port: usize, vlan: Vlan) -> Option<Form> {
        carries(self.get(port), vlan)
    }

    /// Whether frames under this source address go from one port to another without being looked at further.
    #[inline]
    pub(super) fn let_run(&self, source: Mac, from: usize, to: usize) -> bool {
        self.looks & (1 << from | 1 << to) == 0 && self.get(from).is_none_or(|policy| policy.guard.permits(source))
    }
}
