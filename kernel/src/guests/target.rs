//! Where a device's interrupts go: the guest's machine and the cores of its vCPUs. The engine's core uses it.

use super::signal;
use crate::cores::Core;
use alloc::{sync::Arc, vec::Vec};
use machine::machine::Machine;
use virtio::msix::Interrupt;

/// The guest of a device, in one of its lives.
pub struct Target {
    machine: Arc<Machine>,
    cores: Vec<&'static Core>,
}

impl Target {
    /// Makes the target of a guest with this machine. Its vCPUs run on `cores`.
    pub fn new(machine: Arc<Machine>, cores: Vec<&'static Core>) -> Self {
        Self { machine, cores }
    }

    /// Posts the interrupts of the guest's timers that are due.
    pub fn ring(&self, now: u64) {
        self.machine.ring(now, |s| signal::send(&self.cores, s));
    }

    /// Whether [`Target::ring`] has to be called for the guest's timers.
    pub fn is_watched(&self) -> bool {
        self.machine.is_watched()
    }

    /// Posts an interrupt, and kicks the receiving core if a kick is needed. Returns false if no vCPU of the guest has
    /// the destination's address.
    pub fn deliver(&self, interrupt: Interrupt) -> bool {
        self.machine.deliver(interrupt, |s| signal::send(&self.cores, s))
    }
}
