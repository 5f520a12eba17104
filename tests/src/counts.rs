//! Reads sidecore's counters: of guests' network devices, of exits, engines and uplinks. Nothing else reads them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use control::{Block, Console, Count, Counters, Entropy, Port, StageCounters};

/// Counters of a guest's network devices, summed over all devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// Frames to the guest.
    pub rx_packets: u64,
    /// Frames from it.
    pub tx_packets: u64,
    /// Bytes from it.
    pub tx_bytes: u64,
    /// Frames to or from it that the engine has dropped, by cause.
    pub drops: BTreeMap<String, u64>,
    /// Checksums that the engine has computed for it.
    pub checksums: u64,
    /// Segments that the engine has cut for it.
    pub segments: u64,
    /// Interrupts that the engine has sent.
    pub interrupts: u64,
    /// Notifications that the engine has received.
    pub kicks: u64,
    /// Of these, for commands of the control queue.
    pub commands: u64,
    /// How often the engine armed a queue for a notification.
    pub arms: u64,
    /// How often polling began.
    pub polls: u64,
    /// Resets of a device.
    pub resets: u64,
    /// Requests that came back after a reset had begun.
    pub stale_tokens: u64,
    /// Rules of the ring that the guest broke.
    pub ring_errors: u64,
}

impl Net {
    /// Frames that were dropped for this cause.
    #[must_use]
    pub fn dropped(&self, cause: &str) -> u64 {
        self.drops.get(cause).copied().unwrap_or_default()
    }

    /// Frames that were dropped, whatever the cause.
    #[must_use]
    pub fn all_dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Frames of the guest whose virtio-net header did not fit the frame.
    #[must_use]
    pub fn bad_headers(&self) -> u64 {
        self.dropped("tx_bad_header") + self.dropped("tx_bad_length")
    }

    fn add(&mut self, port: &Port) {
        self.rx_packets += port.rx_packets;
        self.tx_packets += port.tx_packets;
        self.tx_bytes += port.tx_bytes;
        for drop in &port.drops {
            *self.drops.entry(drop.kind.to_string()).or_default() += drop.count;
        }
        self.checksums += port.checksums;
        self.segments += port.segments;
        self.interrupts += port.interrupts;
        self.kicks += port.kicks;
        self.commands += port.commands;
        self.arms += port.arms;
        self.polls += port.polls;
        self.resets += port.resets;
        self.stale_tokens += port.stale_tokens;
        self.ring_errors += port.ring_errors;
    }
}

/// The counters of guest `name`. There must be one.
pub fn guest<'a>(counters: &'a Counters, name: &str) -> Result<&'a control::Guest> {
    counters.guest(name).with_context(|| format!("no guest {name} in the counters"))
}

/// The counters of the network devices of guest `name`. It must have one.
pub fn net(counters: &Counters, name: &str) -> Result<Net> {
    let guest = guest(counters, name)?;
    guest.ports.first().with_context(|| format!("guest {name} has no port"))?;
    let mut net = Net::default();
    guest.ports.iter().for_each(|port| net.add(port));
    Ok(net)
}

/// The counters of the entropy device of guest `name`. It must have one.
pub fn entropy(counters: &Counters, name: &str) -> Result<Entropy> {
    guest(counters, name)?.entropy.first().cloned().with_context(|| format!("guest {name} has no entropy device"))
}

/// The counters of the disk with this serial number of guest `name`. It must have one.
pub fn disk(counters: &Counters, name: &str, serial: &str) -> Result<Block> {
    let found = guest(counters, name)?.blocks.iter().find(|disk| disk.serial == serial).cloned();
    found.with_context(|| format!("guest {name} has no disk {serial}"))
}

/// The counters of the console device of guest `name`. It must have one.
pub fn console(counters: &Counters, name: &str) -> Result<Console> {
    guest(counters, name)?.consoles.first().cloned().with_context(|| format!("guest {name} has no console device"))
}

/// The exits of guest `name` for accesses to I/O ports, its notifications included.
pub fn io_exits(counters: &Counters, name: &str) -> Result<u64> {
    Ok(exits(counters, name)?.iter().filter(|(reason, _)| reason.starts_with("io")).map(|(_, count)| count).sum())
}

/// The counters of the network devices of all guests.
#[must_use]
pub fn net_of_all(counters: &Counters) -> Net {
    let mut net = Net::default();
    counters.guests.iter().flat_map(|guest| &guest.ports).for_each(|port| net.add(port));
    net
}

/// The counters of a stage of a guest's port.
pub fn stage(counters: &Counters, name: &str, stage: &str) -> Result<StageCounters> {
    let mut stages = guest(counters, name)?.ports.iter().flat_map(|port| &port.stages);
    stages.find(|counted| counted.stage == stage).cloned().with_context(|| format!("no stage {stage} at {name}"))
}

/// The exits of guest `name` by reason, summed over its virtual CPUs.
pub fn exits(counters: &Counters, name: &str) -> Result<BTreeMap<String, u64>> {
    let mut exits = BTreeMap::new();
    for exit in guest(counters, name)?.vcpus.iter().flat_map(|vcpu| &vcpu.exits) {
        *exits.entry(exit.reason.to_string()).or_default() += exit.count;
    }
    Ok(exits)
}

/// The exits of each virtual CPU of guest `name`. Empty if there is no such guest.
#[must_use]
pub fn exits_of_vcpus(counters: &Counters, name: &str) -> Vec<u64> {
    let vcpus = counters.guest(name).into_iter().flat_map(|guest| &guest.vcpus);
    vcpus.map(|vcpu| vcpu.exits.iter().map(|exit| exit.count).sum()).collect()
}

/// All exits of guest `name`.
#[must_use]
pub fn all_exits(counters: &Counters, name: &str) -> u64 {
    counters.guest(name).map_or(0, control::Guest::total_exits)
}

/// Exits of guest `name` for notifications.
#[must_use]
pub fn notify_exits(counters: &Counters, name: &str) -> u64 {
    exits(counters, name).ok().and_then(|exits| exits.get("io-virtio-notify").copied()).unwrap_or_default()
}

/// How often guest `name` was started.
#[must_use]
pub fn starts(counters: &Counters, name: &str) -> u64 {
    counters.guest(name).map_or(0, |guest| guest.starts)
}

/// The counters of a guest's shadow IDT.
#[must_use]
pub fn shadow<'a>(counters: &'a Counters, name: &str) -> &'a [Count] {
    counters.guest(name).map_or(&[], |guest| &guest.shadow_idt)
}

/// One of these counters.
#[must_use]
pub fn count(counts: &[Count], kind: &str) -> u64 {
    counts.iter().find(|counted| counted.kind == kind).map_or(0, |counted| counted.count)
}

/// Turns of the engines that found work.
#[must_use]
pub fn busy_turns(counters: &Counters) -> u64 {
    counters.engines.iter().map(|engine| engine.busy_turns).sum()
}

/// Turns of the engines, with and without work.
#[must_use]
pub fn turns(counters: &Counters) -> u64 {
    counters.engines.iter().map(|engine| engine.busy_turns + engine.idle_turns).sum()
}

/// The counter with that name, summed over the uplinks.
#[must_use]
pub fn uplinks(counters: &Counters, kind: &str) -> u64 {
    counters.engines.iter().flat_map(|engine| &engine.uplinks).map(|uplink| uplink.count(kind)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_guest_are_counted_together() {
        let drops = vec![Count { kind: "tx_denied".into(), count: 3 }];
        let port = Port { rx_packets: 2, kicks: 1, drops, ..Port::default() };
        let mut net = Net::default();
        net.add(&port);
        net.add(&port);
        assert_eq!((net.rx_packets, net.kicks, net.dropped("tx_denied"), net.all_dropped()), (4, 2, 6, 6));
        assert!(super::net(&Counters::default(), "a").is_err());
    }
}
