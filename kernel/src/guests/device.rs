//! A device of a guest, as the guest keeps it over its lives.

use super::counts;
use crate::{
    engines::{Engine, NewDevice},
    guests::target::Target,
    rules::{self, Rules},
};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
};
use config::Offloads;
use engine::{control::Reply, schedule::GuestWeight, slots::MAX_SLOTS};
use memory::GuestMemory;
use net::{counters::PortCounters, features::Features, port::Port};
use virtio::{config::DeviceConfig, shared::Shared};

/// A device. It has the same slot of the same engine for as long as sidecore runs.
pub struct Device {
    /// The engine that serves it.
    engine: &'static Engine,
    /// Its slot there.
    slot: usize,
    /// What the guest's vCPUs and the engine share of it.
    pub shared: &'static Shared,
    kind: Kind,
}

/// What only devices of one kind have.
enum Kind {
    /// A network device.
    Net {
        mac: config::Mac,
        /// What its frames may do. `None`: everything.
        rules: Option<Rules>,
        /// Its port of the switch.
        port: Port,
    },
}

impl Device {
    /// Makes the device of one `[[guest.net]]`, in `slot` of an engine. `all` is the whole configuration.
    ///
    /// # Errors
    /// The engine has no such slot.
    pub fn net(all: &config::Config, net: &config::Net, engine: &'static Engine, slot: usize) -> Result<Self, String> {
        if slot >= MAX_SLOTS {
            return Err(format!("engine {} has slots for {MAX_SLOTS} devices and all are taken", engine.id()));
        }
        let rules = rules::of_guest(all, net);
        let port = Port {
            policy: rules.as_ref().map(|r| r.policy),
            uplink: net.port.and_then(|port| u8::try_from(port).ok()),
            counters: Box::leak(Box::new(PortCounters::new())),
        };
        let base = net::device::config(net.mac.0, net.mtu, net.queues);
        let mut features = Features::from_bits_retain(base.features);
        features.remove(match net.offloads {
            Offloads::Segmentation => Features::empty(),
            Offloads::Checksum => Features::NET_SEGMENTATION,
            Offloads::None => Features::NET_SEGMENTATION | Features::NET_CHECKSUM,
        });
        features.set(Features::RING_PACKED, net.packed);
        // Frames that leave by an uplink complete later than others.
        features.remove(Features::IN_ORDER);
        let shared = Box::leak(Box::new(Shared::new(DeviceConfig { features: features.bits(), ..base })));
        Ok(Self { engine, slot, shared, kind: Kind::Net { mac: net.mac, rules, port } })
    }

    /// Gives it to its engine, for a new life of its guest with this memory. Its interrupts go to `target`.
    ///
    /// # Errors
    /// The engine does not take it, and why.
    pub fn attach(
        &self,
        memory: GuestMemory,
        requests: config::Requests,
        share: GuestWeight,
        target: Target,
    ) -> Result<(), String> {
        let Kind::Net { port: config, .. } = self.kind;
        let device = NewDevice { slot: self.slot, shared: self.shared, memory, requests, share, config, target };
        self.engine
            .attach(device)
            .map_err(|reply| format!("slot {} of engine {}: {reply:?}", self.slot, self.engine.id()))
    }

    /// Takes it back from its engine. False: the engine did not give it back.
    pub fn detach(&self) -> bool {
        matches!(self.engine.detach(self.slot), Reply::Detached(_))
    }

    /// Whether its engine watches the timers of guests.
    pub fn has_timers_watched(&self) -> bool {
        self.engine.watches_timers()
    }

    /// Everything that is counted of it.
    pub fn counters(&self) -> control::Port {
        let Kind::Net { mac, rules, port } = &self.kind;
        let device = self.shared.counters();
        let PortCounters { frames, drops } = port.counters;
        let refused = core::iter::once(("interrupts_refused", device.interrupts_refused.get()));
        control::Port {
            mac: mac.to_string(),
            rx_packets: frames.rx_packets.get(),
            rx_bytes: frames.rx_bytes.get(),
            tx_packets: frames.tx_packets.get(),
            tx_bytes: frames.tx_bytes.get(),
            drops: counts::by_name(drops.iter().chain(refused)),
            checksums: frames.rx_checksums.get(),
            segments: frames.rx_segments.get(),
            interrupts: device.interrupts.get(),
            kicks: device.kicks.get(),
            arms: device.arms.get(),
            polls: device.polls.get(),
            engine_cycles: device.engine_cycles.get(),
            commands: frames.commands.get(),
            resets: device.resets.get(),
            stale_tokens: device.stale_tokens.get(),
            ring_errors: device.faults.get(),
            stages: rules.iter().flat_map(Rules::counters).collect(),
        }
    }
}
