//! The costs of a guest's I/O: its exits by reason, beside its packets and interrupts.

use std::collections::BTreeMap;

use anyhow::Result;
use control::Counters;

use crate::counts;

/// Reasons of exits that I/O causes: notifications, interrupts, EOIs, and the registers of the interrupt path. HLT is
/// not among them: a guest may halt when it likes, and emulators have their own reasons to intercept it. The timer has
/// its own list.
const IO: [&str; 14] = [
    "io-virtio-notify",
    "mmio-virtio-notify",
    "external-interrupt",
    "interrupt-window",
    "nmi",
    "msr-apic-eoi",
    "msr-apic-icr",
    "msr-apic-other",
    "cr8",
    "virtual-eoi",
    "apic-write",
    "shadow-interrupt",
    "shadow-write",
    "descriptor-table",
];
/// Reasons of exits that the guest's timer causes: its registers, and its end.
const TIMER: [&str; 2] = ["msr-apic-timer", "deadline"];

/// The costs of a guest, since its start or in a window.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Packets in both directions.
    pub packets: u64,
    /// Of these, packets to the guest.
    pub received: u64,
    /// Packets to or from the guest that the engine has dropped.
    pub dropped: u64,
    /// Interrupts that the engine has sent.
    pub interrupts: u64,
    /// Notifications that the engine has received.
    pub kicks: u64,
    /// Exits by reason.
    pub exits: BTreeMap<String, u64>,
    /// The time-stamp counter, or its difference in a window.
    pub tsc: u64,
    /// Its frequency in Hz.
    pub tsc_hz: u64,
}

impl Costs {
    /// The costs of a guest since its start, from these counters.
    pub fn of(counters: &Counters, name: &str) -> Result<Self> {
        let net = counts::net(counters, name)?;
        Ok(Self {
            packets: net.rx_packets + net.tx_packets,
            received: net.rx_packets,
            dropped: net.all_dropped(),
            interrupts: net.interrupts,
            kicks: net.kicks,
            exits: counts::exits(counters, name)?,
            tsc: counters.tsc,
            tsc_hz: counters.tsc_hz,
        })
    }

    /// The costs of a guest between two readings of the counters.
    pub fn between([before, after]: &[Counters; 2], name: &str) -> Result<Self> {
        Ok(Self::of(after, name)?.since(&Self::of(before, name)?))
    }

    /// The difference to earlier costs.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let exits = self.exits.iter().map(|(reason, count)| {
            (reason.clone(), count.saturating_sub(before.exits.get(reason).copied().unwrap_or_default()))
        });
        Self {
            packets: self.packets.saturating_sub(before.packets),
            received: self.received.saturating_sub(before.received),
            dropped: self.dropped.saturating_sub(before.dropped),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            kicks: self.kicks.saturating_sub(before.kicks),
            exits: exits.filter(|(_, count)| *count > 0).collect(),
            tsc: self.tsc.saturating_sub(before.tsc),
            tsc_hz: self.tsc_hz,
        }
    }

    /// Exits for one reason.
    pub fn exits_for(&self, reason: &str) -> u64 {
        self.exits.get(reason).copied().unwrap_or_default()
    }

    /// Exits for any of these reasons.
    pub fn exits_for_any(&self, reasons: &[&str]) -> u64 {
        reasons.iter().map(|reason| self.exits_for(reason)).sum()
    }

    /// Exits that I/O has caused.
    pub fn io_exits(&self) -> u64 {
        self.exits_for_any(&IO)
    }

    /// Exits that its timer has caused, if they can be told apart from those of I/O: the end of an emulated timer is an
    /// external interrupt.
    pub fn timer_exits(&self) -> u64 {
        self.exits_for_any(&TIMER)
    }

    /// Exits for any reason.
    pub fn all_exits(&self) -> u64 {
        self.exits.values().sum()
    }

    /// Seconds of the guest's time.
    pub fn seconds(&self) -> f64 {
        self.tsc as f64 / self.tsc_hz.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{ExitCount, Guest, GuestState, Port, VcpuCounters};

    fn counters(eoi: u64, hlt: u64, tsc: u64) -> Counters {
        let exit = |reason: &'static str, count| ExitCount { reason: reason.into(), count, cycles: 0 };
        let vcpu = VcpuCounters { core: 2, exits: vec![exit("msr-apic-eoi", eoi), exit("hlt", hlt)] };
        let port = Port { rx_packets: eoi, tx_packets: 1, interrupts: eoi, ..Port::default() };
        let guest = Guest {
            name: "a".into(),
            state: GuestState::Running,
            starts: 1,
            vcpus: vec![vcpu],
            ports: vec![port],
            ..Guest::default()
        };
        Counters { guests: vec![guest], tsc, tsc_hz: 100, ..Counters::default() }
    }

    #[test]
    fn a_window_has_what_came_in_it() {
        let before = Costs::of(&counters(10, 5, 1000), "a").unwrap();
        let window = Costs::of(&counters(17, 5, 1250), "a").unwrap().since(&before);
        assert_eq!((window.packets, window.interrupts, window.io_exits(), window.all_exits()), (7, 7, 7, 7));
        assert_eq!(window.seconds(), 2.5);
        assert!(!window.exits.contains_key("hlt"), "nothing of that reason came");
    }

    #[test]
    fn halts_are_not_io() {
        let costs = Costs::of(&counters(0, 9, 0), "a").unwrap();
        assert_eq!((costs.io_exits(), costs.all_exits(), costs.exits_for("hlt")), (0, 9, 9));
        assert!(Costs::of(&counters(0, 0, 0), "b").is_err());
    }
}
