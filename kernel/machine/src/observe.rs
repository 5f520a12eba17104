//! Watches a guest's exits and what is injected. This is the only hook for all of them.
//!
//! The [`Host`](crate::machine::Host) of a vCPU's core is its [`Observer`]. So its type is known when the code is compiled,
//! and no pointer is called between an exit and the next entry. At each exit [`Observer::watches_exits`] is asked once.

use crate::{reason::Reason, vcpu::Event};

/// An exit that has been handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Index of the vCPU.
    pub vcpu: usize,
    /// The reason of the exit, as the histogram counts it.
    pub reason: Reason,
    /// The guest's instruction pointer at the exit.
    pub rip: u64,
    /// What the exit named. By kind of exit:
    ///
    /// - port access: the port
    /// - RDMSR, WRMSR and APIC write: number of the MSR
    /// - nested fault: guest-physical address
    /// - external interrupt, end of interrupt and exception: the vector, where it is known
    /// - CPUID: the leaf
    /// - #NP: the error code
    /// - unexpected: the raw reason
    /// - any other: 0
    pub qualification: u64,
    /// The host's TSC when its handling began.
    pub begin: u64,
    /// The host's TSC when its handling ended: just before the next entry, or before the vCPU stops or sleeps.
    pub end: u64,
}

/// Watches a vCPU. It runs on the vCPU's core between exit and entry, so it must neither wait nor allocate.
pub trait Observer {
    /// Whether exits are watched now. It is asked at the beginning of each exit.
    fn watches_exits(&self) -> bool;
    /// An exit has been handled that was watched from its beginning.
    fn exit(&self, exit: &Exit);
    /// An event is injected by the next entry. `vcpu`: index of the vCPU. Not called for what the CPU itself delivers: posted
    /// interrupts, and those of a guest that owns its local APIC.
    fn injection(&self, vcpu: usize, event: Event);
}
