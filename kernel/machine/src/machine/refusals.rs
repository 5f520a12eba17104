//! What a guest tried and was refused: counted by kind, and each MSR named once in the log.

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use spin::Mutex;
use virtio::shared::Shared;

/// MSRs remembered for the log; a guest that tries more of them is not worth more lines.
const REMEMBERED: usize = 64;

/// Something that was refused, as hardware would have refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An access to a guest-physical address with nothing behind it: reads as all ones, writes are dropped.
    Memory,
    /// An MSR that the guest does not have, or a value that it does not take: #GP.
    Msr,
    /// A port with nothing behind it: reads as all ones, writes are dropped.
    Port,
    /// Configuration space of a PCI function that does not exist: reads as all ones, writes are dropped.
    PciConfig,
    /// An interrupt command to an APIC that does not exist: goes nowhere.
    Icr,
    /// An instruction that this machine does not have: #UD.
    Instruction,
}

const NAMES: [&str; 6] = ["memory", "msr", "port", "pci-config", "icr", "instruction"];

/// The counts of one machine.
pub(super) struct Refusals {
    counts: [AtomicU64; NAMES.len()],
    msrs: Mutex<heapless::Vec<(u32, bool), REMEMBERED>>,
    devices: Vec<&'static Shared>,
    /// What the devices had counted when this machine was made: a former life's.
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
        self.counts[kind as usize].fetch_add(1, Relaxed);
    }

    /// Counts a refused MSR access. True: this register and direction for the first time.
    pub(super) fn count_msr(&self, number: u32, write: bool) -> bool {
        self.count(Refusal::Msr);
        let mut known = self.msrs.lock();
        !known.contains(&(number, write)) && known.push((number, write)).is_ok()
    }

    /// Name and count of each kind; `messages` are the MSI-X messages that the transport refused.
    pub(super) fn report(&self, messages: u64) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let [interrupts, faults] = device_counts(&self.devices);
        let own = NAMES.into_iter().zip(self.counts.each_ref().map(|c| c.load(Relaxed)));
        own.chain([
            ("msi", messages + interrupts.saturating_sub(self.before[0])),
            ("descriptor", faults.saturating_sub(self.before[1])),
        ])
    }
}

/// Messages that the engine refused, and rings whose rules were broken.
fn device_counts(devices: &[&'static Shared]) -> [u64; 2] {
    let sum = |count: fn(&Shared) -> u64| devices.iter().map(|d| count(d)).sum();
    [sum(|d| d.counters().interrupts_refused.get()), sum(|d| d.counters().faults.get())]
}
