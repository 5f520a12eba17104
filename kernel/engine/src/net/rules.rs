//! The rules of the ports, and what they say of frames that are all alike.

use crate::backend::MAX_PORTS;
use crate::policy::stage::{Judged, Reads};
use crate::policy::vlan::{Form, PLAIN, Vlan};
use crate::policy::{Policy, Refusal, carries};
use crate::switch::Mac;

/// The rules of the ports. One without any is not asked.
pub(super) struct Ports {
    policies: [Option<&'static Policy>; MAX_PORTS],
    /// What is looked at of frames from each, and of frames to it.
    reads: [(Reads, Reads); MAX_PORTS],
    /// The VLAN of frames that come without a tag.
    untagged: [Option<Vlan>; MAX_PORTS],
}

impl Ports {
    pub(super) const fn new() -> Self {
        Self {
            policies: [None; MAX_PORTS],
            reads: [(Reads::empty(), Reads::empty()); MAX_PORTS],
            untagged: [Some(PLAIN); MAX_PORTS],
        }
    }

    /// Gives a port rules, or takes them away.
    pub(super) fn set(&mut self, port: usize, policy: Option<&'static Policy>) {
        let reads = policy.map_or_else(Default::default, |policy| (policy.enter_reads(), policy.leave.reads()));
        let untagged = policy.map_or(Some(PLAIN), |policy| policy.vlan.admit(None));
        if let Some(slot) = self.policies.get_mut(port) {
            *slot = policy;
            self.reads[port] = reads;
            self.untagged[port] = untagged;
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

    /// The VLAN of frames without a tag from a port. None: they are refused.
    #[inline]
    pub(super) fn untagged(&self, port: usize) -> Option<Vlan> {
        *self.untagged.get(port)?
    }

    /// What is looked at of frames from one port to another, besides their addresses.
    #[inline]
    pub(super) fn reads(&self, from: usize, to: usize) -> Reads {
        let of = |port: usize| self.reads.get(port).copied().unwrap_or_default();
        of(from).0 | of(to).1
    }

    /// Those by which frames without a tag of `vlan` from one port to another are judged.
    #[inline]
    pub(super) fn judge(&self, from: usize, to: usize, vlan: Vlan) -> Judge {
        Judge { enter: self.get(from), leave: self.leaving(to), vlan }
    }
}

/// The rules between two ports, for frames that are all alike in what is looked at.
pub(super) struct Judge {
    enter: Option<&'static Policy>,
    leave: Option<&'static Policy>,
    vlan: Vlan,
}

/// Where frames are stopped, and why.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    Entering(Refusal),
    Leaving(Refusal),
}

/// What the rules say of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Judgement {
    enter: Judged,
    leave: Judged,
    pub stopped: Option<Stopped>,
}

impl Judge {
    /// About frames of which nothing is looked at but where they come from.
    #[inline]
    pub(super) fn source(&self, source: Mac) -> Judgement {
        let permitted = self.enter.is_none_or(|policy| policy.guard.permits(source));
        let stopped = if permitted { None } else { Some(Stopped::Entering(Refusal::Mac)) };
        Judgement { enter: Judged::UNTOUCHED, leave: Judged::UNTOUCHED, stopped }
    }

    /// About frames that begin with `front`. None: each is to be looked at by itself.
    pub(super) fn front(&self, front: &[u8]) -> Option<Judgement> {
        let (enter, entered) = match self.enter {
            Some(policy) => policy.judge_entering(front)?,
            None => (Judged::UNTOUCHED, Ok(())),
        };
        let mut judgement = Judgement { enter, leave: Judged::UNTOUCHED, stopped: None };
        match (entered, self.leave) {
            (Err(refusal), _) => judgement.stopped = Some(Stopped::Entering(refusal)),
            (Ok(()), Some(policy)) => {
                judgement.leave = policy.judge_leaving(front, self.vlan)?;
                if !judgement.leave.pass {
                    judgement.stopped = Some(Stopped::Leaving(Refusal::Denied));
                }
            }
            (Ok(()), None) => {}
        }
        Some(judgement)
    }

    /// Counts frames of `bytes` bytes together that were judged so.
    #[inline]
    pub(super) fn count(&self, judgement: &Judgement, frames: u64, bytes: u64) {
        if let Some(policy) = self.enter {
            policy.enter.count(judgement.enter, frames, bytes);
        }
        if let Some(policy) = self.leave {
            policy.leave.count(judgement.leave, frames, bytes);
        }
    }
}
