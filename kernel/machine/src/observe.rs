//! Watches a guest's exits. This is the only hook for all of them.
//!
//! A machine has one [`Observer`]. [`Machine::observe`](crate::machine::Machine::observe) switches it on and off while
//! the guest runs. One relaxed load at each exit decides whether it is on. That is cheap, because an exit costs more
//! than a thousand cycles, and the code is compiled only once.

use crate::reason::Reason;

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

/// Watches the exits of a guest's vCPUs. It runs on the vCPU's core between exit and entry, so it must neither wait nor
/// allocate. Several vCPUs may call it at once.
pub trait Observer: Sync {
    /// An exit has been handled.
    fn exit(&self, exit: &Exit);
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn exit(&self, _: &Exit) {}
}
