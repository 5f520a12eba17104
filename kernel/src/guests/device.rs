//! A device of a guest, as the guest keeps it over its lives.

use super::counts;
use crate::rules::{self, Rules};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
};
use config::Offloads;
use control::Port;
use engine::{
    backend::MAX_PORTS,
    net,
    shared::{DeviceConfig, Features, Shared},
};

/// Counters that count dropped frames or interrupts.
const DROP_CAUSES: [&str; 18] = [
    "tx_bad_length",
    "tx_bad_header",
    "tx_bad_source",
    "tx_spoofed_mac",
    "tx_spoofed_address",
    "tx_unreadable",
    "tx_vlan",
    "tx_denied",
    "tx_limited",
    "tx_storm",
    "tx_no_destination",
    "rx_denied",
    "rx_limited",
    "rx_unreadable",
    "rx_no_buffer",
    "rx_too_large",
    "rx_not_running",
    "interrupts_refused",
];

/// A device. It is at the same port of the switch for as long as sidecore runs.
pub struct Device {
    /// Its port of the switch.
    pub port: usize,
    /// What the guest's vCPUs and the engine share of it.
    pub shared: &'static Shared,
    mac: [u8; 6],
    /// What its frames may do. `None`: everything.
    rules: Option<Rules>,
}

impl Device {
    /// Makes the device of one `[[guest.net]]`, at `port` of the switch. `all` is the whole configuration.
    ///
    /// # Errors
    /// The switch has no such port.
    pub fn new(all: &config::Config, net: &config::Net, port: usize) -> Result<Self, String> {
        if port >= MAX_PORTS {
            return Err(format!("the switch has {MAX_PORTS} ports and all are taken"));
        }
        let mac = net.mac.0;
        let rules = rules::of_guest(all, net);
        let mut device = DeviceConfig {
            policy: rules.as_ref().map(|r| r.policy),
            uplink: net.port.and_then(|port| u8::try_from(port).ok()),
            ..net::config(mac, net.mtu, net.queues)
        };
        device.features.remove(match net.offloads {
            Offloads::Segmentation => Features::empty(),
            Offloads::Checksum => Features::NET_SEGMENTATION,
            Offloads::None => Features::NET_SEGMENTATION | Features::NET_CHECKSUM,
        });
        device.features.set(Features::RING_PACKED, net.packed);
        // Frames that leave by an uplink complete later than others.
        device.features.remove(Features::IN_ORDER);
        Ok(Self { port, shared: Box::leak(Box::new(Shared::new(device))), mac, rules })
    }

    /// Everything that is counted of it.
    pub fn counters(&self) -> Port {
        let c = self.shared.counters();
        Port {
            mac: config::Mac(self.mac).to_string(),
            rx_packets: c.rx_packets.get(),
            rx_bytes: c.rx_bytes.get(),
            tx_packets: c.tx_packets.get(),
            tx_bytes: c.tx_bytes.get(),
            drops: counts::by_name(c.iter().filter(|(name, _)| DROP_CAUSES.contains(name))),
            checksums: c.rx_checksums.get(),
            segments: c.rx_segments.get(),
            interrupts: c.interrupts.get(),
            kicks: c.kicks.get(),
            arms: c.arms.get(),
            polls: c.polls.get(),
            engine_cycles: c.engine_cycles.get(),
            commands: c.commands.get(),
            resets: c.resets.get(),
            stale_tokens: c.stale_tokens.get(),
            ring_errors: c.faults.get(),
            stages: self.rules.iter().flat_map(Rules::counters).collect(),
        }
    }
}
