//! Counts what a guest tried and was refused, by kind. The log names each MSR once.

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use spin::Mutex;
use virtio::shared::Shared;

/// Most MSRs that the log names. A guest that tries more of them could fill the log.
const REMEMBERED: usize = 64;

/// A kind of refusal. The guest sees what hardware would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An access to a guest-physical address with nothing behind it. It reads as all ones, and writes are dropped.
    Memory,
    /// An MSR that the guest does not have, or a value that the MSR does not take. The guest gets #GP.
    Msr,
    /// A port with nothing behind it. It reads as all ones, and writes are dropped.
    Port,
    /// Configuration space of a PCI function that does not exist. It reads as all ones, and writes are dropped.
    PciConfig,
    /// An interrupt command to an APIC that does not exist. It is dropped.
    Icr,
    /// An instruction that this machine does not have. The guest gets #UD.
    Instruction,
}

const NAMES: [&str; 6] = ["memory", "msr", "port", "pci-config", "icr", "instruction"];

/// The counts of one machine.
pub(super) struct Refusals {
    counts: [AtomicU64; NAMES.len()],
    msrs: Mutex<heapless::Vec<(u32, bool), REMEMBERED>>,
    devices: Vec<&'static Shared>,
    /// What the devices had counted when this machine was made. Those counts belong to former lives.
    before: [u64; 2],
}

impl Refusals {
    pub(super) fn new(devices: &[&'static Shared]) -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; NAMES.len()],
            msrs: Mutex::new(heapless::Vec::new()),
            devices: devices.to_vec(),
            before: device_counts(devices),
        }
    }

    pub(super) fn count(&self, kind: Refusal) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts a refused MSR access. Returns true if it is the first for this register and direction.
    pub(super) fn count_msr(&self, number: u32, write: bool) -> bool {
        self.count(Refusal::Msr);
        let mut known = self.msrs.lock();
        !known.contains(&(number, write)) && known.push((number, write)).is_ok()
    }

    /// Returns name and count of each kind. `messages` is the number of MSI-X messages that the transport refused.
    pub(super) fn report(&self, messages: u64) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let [interrupts, faults] = device_counts(&self.devices);
        let own = NAMES.into_iter().zip(self.counts.each_ref().map(|c| c.load(Relaxed)));
        own.chain([
            ("msi", messages.saturating_add(interrupts.saturating_sub(self.before[0]))),
            ("descriptor", faults.saturating_sub(self.before[1])),
        ])
    }
}

/// Returns the number of messages that the engine refused, and the number of rings whose rules the driver broke.
fn device_counts(devices: &[&'static Shared]) -> [u64; 2] {
    let sum = |count: fn(&Shared) -> u64| devices.iter().map(|d| count(d)).sum();
    [sum(|d| d.counters().interrupts_refused.get()), sum(|d| d.counters().faults.get())]
}
