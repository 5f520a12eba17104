//! Where a device's interrupts go: a guest's machine and the cores of its vCPUs. Used by the engine's core.

use super::signal;
use crate::cores::Core;
use alloc::{sync::Arc, vec::Vec};
use engine::msix::Interrupt;
use machine::machine::Machine;

/// A guest, as the engine's completions see it.
pub struct Target {
    machine: Arc<Machine>,
    cores: Vec<&'static Core>,
}

impl Target {
    /// For one life of a guest.
    pub fn new(machine: Arc<Machine>, cores: Vec<&'static Core>) -> Self {
        Self { machine, cores }
    }

    /// Posts the interrupts of the guest's timers that are due.
    pub fn ring(&self, now: u64) {
        self.machine.ring(now, |s| signal::send(&self.cores, s));
    }

    /// Whether there are timers that [`Target::ring`] has to look at.
    pub fn is_watched(&self) -> bool {
        self.machine.is_watched()
    }

    /// Posts an interrupt and kicks the core that is to take it, if it has to be kicked. False: no vCPU of the guest
    /// answers to the destination.
    pub fn deliver(&self, interrupt: Interrupt) -> bool {
        self.machine.deliver(interrupt, |s| signal::send(&self.cores, s))
    }
}
