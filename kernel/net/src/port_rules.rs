//! The rules of all ports, and their verdict on the frames of a flow.

use crate::mac::Mac;
use crate::policy::stage::{ChainVerdict, Reads};
use crate::policy::vlan::{PLAIN, Tagging, Vlan};
use crate::policy::{Policy, Refusal, carries};
use crate::ports::MAX_PORTS;

/// The rules of all ports. A port without rules is not checked.
pub(crate) struct PortRules {
    policies: [Option<&'static Policy>; MAX_PORTS],
    /// What the rules look at in frames from each port, and in frames to it.
    reads: [(Reads, Reads); MAX_PORTS],
    /// The VLAN of untagged frames from each port. `None`: they are refused.
    untagged: [Option<Vlan>; MAX_PORTS],
}

impl PortRules {
    pub(crate) const fn new() -> Self {
        Self {
            policies: [None; MAX_PORTS],
            reads: [(Reads::empty(), Reads::empty()); MAX_PORTS],
            untagged: [Some(PLAIN); MAX_PORTS],
        }
    }

    /// Sets or removes the rules of a port.
    pub(crate) fn set(&mut self, port: usize, policy: Option<&'static Policy>) {
        let reads = policy.map_or_else(Default::default, |policy| (policy.enter_reads(), policy.leave.reads()));
        let untagged = policy.map_or(Some(PLAIN), |policy| policy.vlan.admit(None));
        if let Some(slot) = self.policies.get_mut(port)
            && let Some(of_port) = self.reads.get_mut(port)
            && let Some(of_untagged) = self.untagged.get_mut(port)
        {
            (*slot, *of_port, *of_untagged) = (policy, reads, untagged);
        }
    }

    /// Returns the rules of a port.
    #[inline]
    pub(crate) fn get(&self, port: usize) -> Option<&'static Policy> {
        self.policies.get(port).copied().flatten()
    }

    /// Returns the rules of a port if they look at frames to it.
    #[inline]
    pub(crate) fn leaving(&self, port: usize) -> Option<&'static Policy> {
        self.get(port).filter(|policy| !policy.leave.is_empty())
    }

    /// Returns how frames of a VLAN are tagged at a port. `None`: the port is not in the VLAN.
    #[inline]
    pub(crate) fn tagging(&self, port: usize, vlan: Vlan) -> Option<Tagging> {
        carries(self.get(port), vlan)
    }

    /// Returns the VLAN of untagged frames from a port. `None`: they are refused.
    #[inline]
    pub(crate) fn untagged(&self, port: usize) -> Option<Vlan> {
        *self.untagged.get(port)?
    }

    /// Returns what the rules of two ports look at in frames from one to the other, besides the addresses.
    #[inline]
    pub(crate) fn reads(&self, from: usize, to: usize) -> Reads {
        let of = |port: usize| self.reads.get(port).copied().unwrap_or_default();
        of(from).0 | of(to).1
    }

    /// Returns the rules between two ports for untagged frames of `vlan`.
    #[inline]
    pub(crate) fn between(&self, from: usize, to: usize, vlan: Vlan) -> PairRules {
        PairRules { enter: self.get(from), leave: self.leaving(to), vlan }
    }
}

/// The rules between two ports, for the frames of a flow.
pub(crate) struct PairRules {
    enter: Option<&'static Policy>,
    leave: Option<&'static Policy>,
    vlan: Vlan,
}

/// Which port's rules refuse a flow, and why.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The rules of the sender's port, on the way into the switch.
    Entering(Refusal),
    /// The rules of the receiver's port, on the way out of the switch.
    Leaving(Refusal),
}

/// The verdict of two ports' rules on a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PairVerdict {
    enter: ChainVerdict,
    leave: ChainVerdict,
    pub stopped: Option<Stopped>,
}

impl PairVerdict {
    /// Returns the verdict on the same flow if it is also refused on its way into the switch.
    pub(crate) fn refused(self, refusal: Refusal) -> Self {
        Self { enter: self.enter, leave: ChainVerdict::UNTOUCHED, stopped: Some(Stopped::Entering(refusal)) }
    }
}

impl PairRules {
    /// Evaluates rules that look at the source address only.
    #[inline]
    pub(crate) fn check_source(&self, source: Mac) -> PairVerdict {
        let permitted = self.enter.is_none_or(|policy| policy.guard.permits(source));
        let stopped = if permitted { None } else { Some(Stopped::Entering(Refusal::Mac)) };
        PairVerdict { enter: ChainVerdict::UNTOUCHED, leave: ChainVerdict::UNTOUCHED, stopped }
    }

    /// Evaluates the rules on frames that start with `front`. `None`: each frame needs a verdict of its own.
    pub(crate) fn check_front(&self, front: &[u8]) -> Option<PairVerdict> {
        let (enter, entered) = match self.enter {
            Some(policy) => policy.evaluate_enter(front)?,
            None => (ChainVerdict::UNTOUCHED, Ok(())),
        };
        let mut verdict = PairVerdict { enter, leave: ChainVerdict::UNTOUCHED, stopped: None };
        match (entered, self.leave) {
            (Err(refusal), _) => verdict.stopped = Some(Stopped::Entering(refusal)),
            (Ok(()), Some(policy)) => {
                verdict.leave = policy.evaluate_leave(front, self.vlan)?;
                if !verdict.leave.pass {
                    verdict.stopped = Some(Stopped::Leaving(Refusal::Denied));
                }
            }
            (Ok(()), None) => {}
        }
        Some(verdict)
    }

    /// Counts frames of `bytes` bytes in total at the stages that they match.
    #[inline]
    pub(crate) fn count(&self, verdict: &PairVerdict, frames: u64, bytes: u64) {
        if let Some(policy) = self.enter {
            policy.enter.count(verdict.enter, frames, bytes);
        }
        if let Some(policy) = self.leave {
            policy.leave.count(verdict.leave, frames, bytes);
        }
    }
}
