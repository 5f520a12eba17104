//! A guest's device. The guest keeps it over all its lives.

use super::{counts, disk::Disk, ports::ConsolePorts};
use crate::{
    engines::{self, Answer, Engine, NewDevice},
    guests::target::Target,
    rules::{self, Rules},
    uplink,
};
use alloc::{boxed::Box, format, string::String};
use config::{GuestDevice, Offloads};
use control::{NoMemory, Text, sentence};
use core::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};
use engine::{pair::Half, schedule::GuestWeight, slots::MAX_SLOTS};
use entropy::counters::EntropyCounters;
use memory::GuestMemory;
use net::{counters::PortCounters, features::Features, port::Port};
use virtio::{config::DeviceConfig, fault::Fault, shared::Shared};

/// A device. It has the same slot of the same engine for as long as sidecore runs.
pub struct Device {
    /// The engine that serves it.
    engine: &'static Engine,
    /// Its slot there.
    slot: usize,
    /// The state that the guest's vCPUs and the engine share.
    pub shared: &'static Shared,
    kind: Kind,
    /// The faults that were told, one bit for each by its number.
    told: AtomicU32,
}

// Each fault has a bit.
const _: () = assert!(Fault::COUNT <= u32::BITS as usize);

/// The kind of a device, with what only that kind has.
enum Kind {
    /// A network device.
    Net {
        mac: config::Mac,
        /// The rules for its frames. `None` if everything is allowed.
        rules: Option<Rules>,
        /// Its port of the switch.
        port: Port,
    },
    /// A block device.
    Block(Disk),
    /// An entropy device.
    Entropy { counters: &'static EntropyCounters },
    /// A console device.
    Console(ConsolePorts),
}

impl Kind {
    /// Returns the kind of `device`, and the device configuration that its driver reads. `all` is the whole
    /// configuration.
    ///
    /// # Errors
    /// Something is missing; the text says what.
    fn of(all: &config::Config, device: &GuestDevice) -> Result<(Self, DeviceConfig), String> {
        Ok(match device {
            GuestDevice::Net(net) => Self::net(all, net),
            GuestDevice::Block(block) => {
                let (disk, config) = Disk::make(block)?;
                (Self::Block(disk), config)
            }
            GuestDevice::Entropy(_) => {
                (Self::Entropy { counters: Box::leak(Box::default()) }, entropy::device::config())
            }
            GuestDevice::Console(console) => (
                Self::Console(ConsolePorts::new(console)),
                virtio_console::device::config(console.ports.len().saturating_add(1)),
            ),
        })
    }

    fn net(all: &config::Config, net: &config::Net) -> (Self, DeviceConfig) {
        let rules = rules::of_guest(all, net, uplink::nics());
        let port = Port {
            policy: rules.as_ref().map(|r| r.policy),
            uplink: net.uplink.and_then(|uplink| u8::try_from(uplink).ok()),
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
        // Frames that leave by an uplink complete later than others, so completions are not in order.
        features.remove(Features::IN_ORDER);
        (Self::Net { mac: net.mac, rules, port }, DeviceConfig { features: features.bits(), ..base })
    }

    /// Returns its back-end, with what the back-end must know of the device.
    fn backend(&self) -> engines::Config {
        match self {
            Self::Net { port, .. } => Half::First(*port),
            Self::Block(disk) => Half::Second(Half::First(disk.backend())),
            Self::Entropy { counters } => Half::Second(Half::Second(Half::First(counters))),
            Self::Console(ports) => Half::Second(Half::Second(Half::Second(ports.begin_life()))),
        }
    }
}

impl Device {
    /// Makes a device of the configuration, in `slot` of an engine. `all` is the whole configuration.
    ///
    /// # Errors
    /// The engine has no such slot, or the device lacks something.
    pub fn new(
        all: &config::Config,
        device: &GuestDevice,
        engine: &'static Engine,
        slot: usize,
    ) -> Result<Self, String> {
        if slot >= MAX_SLOTS {
            return Err(format!("engine {} has slots for {MAX_SLOTS} devices and all are taken", engine.id()));
        }
        let (kind, config) = Kind::of(all, device)?;
        let shared = Box::leak(Box::new(Shared::new(config)));
        Ok(Self { engine, slot, shared, kind, told: AtomicU32::new(0) })
    }

    /// Asks its engine to attach it for a new life of its guest. `memory` is the guest's. Its interrupts go to `target`.
    ///
    /// # Errors
    /// The engine cannot be asked; the text says why.
    pub fn attach(
        &self,
        memory: GuestMemory,
        requests: config::Requests,
        share: GuestWeight,
        target: Target,
    ) -> Result<(), Text> {
        let config = self.kind.backend();
        let device = NewDevice { slot: self.slot, shared: self.shared, memory, requests, share, config, target };
        self.engine.attach(device).map_err(|why| self.refusal(why))
    }

    /// Asks its engine to detach it, once or again.
    pub fn detach(&self) {
        self.engine.detach(self.slot);
    }

    /// Takes the engine's answer to the last question about it.
    pub fn answer(&self) -> Option<Answer> {
        self.engine.answer(self.slot)
    }

    /// Returns the sentence for an engine that does not take it.
    pub fn refusal(&self, why: &str) -> Text {
        sentence(format_args!("{}: slot {} of engine {}: {why}", self.name(), self.slot, self.engine.id()))
    }

    /// Its name for the operator.
    pub fn name(&self) -> impl fmt::Display {
        fmt::from_fn(|f| match &self.kind {
            Kind::Net { mac, .. } => write!(f, "network device {mac}"),
            Kind::Block(disk) => write!(f, "disk {}", disk.serial()),
            Kind::Entropy { .. } => f.write_str("entropy device"),
            Kind::Console(_) => f.write_str("console device"),
        })
    }

    /// Whether its engine watches the guests' timers.
    pub fn has_timers_watched(&self) -> bool {
        self.engine.watches_timers()
    }

    /// Reports what the operator should know of it. Called once a tick. `guest` is the name of its guest.
    pub fn report(&self, guest: &str) {
        if self.shared.counters().faults.get() != 0 {
            self.tell_faults(guest);
        }
        match &self.kind {
            Kind::Block(disk) => disk.report(guest),
            Kind::Net { .. } | Kind::Entropy { .. } | Kind::Console(_) => {}
        }
    }

    /// Logs which rules of virtio its driver has broken, each once as long as sidecore runs: a guest may break them without end.
    #[cold]
    fn tell_faults(&self, guest: &str) {
        for (number, (fault, count)) in self.shared.faults().enumerate() {
            let bit = 1 << number;
            if count != 0 && self.told.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                log::warn!(
                    "guest {guest}: {}: its driver broke a rule of virtio: {}; the device stands still until the driver resets it",
                    self.name(),
                    fault.text()
                );
            }
        }
    }

    /// Its ports, if it is a console device.
    pub const fn console(&self) -> Option<&ConsolePorts> {
        match &self.kind {
            Kind::Console(ports) => Some(ports),
            _ => None,
        }
    }

    /// Makes its engine look at its ports. Only a console device needs it.
    pub fn ring_console(&self) {
        self.engine.ring_console(self.slot);
    }

    /// Adds its counters to those of its guest.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn count(&self, guest: &mut control::Guest) -> Result<(), NoMemory> {
        let device = self.shared.counters();
        match &self.kind {
            Kind::Net { mac, rules, port } => {
                let PortCounters { frames, drops } = port.counters;
                let refused = core::iter::once(("interrupts_refused", device.interrupts_refused.get()));
                let port = control::Port {
                    mac: control::write(mac)?,
                    rx_packets: frames.rx_packets.get(),
                    rx_bytes: frames.rx_bytes.get(),
                    tx_packets: frames.tx_packets.get(),
                    tx_bytes: frames.tx_bytes.get(),
                    drops: counts::by_name(drops.iter().chain(refused))?,
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
                    stages: control::collect(rules.iter().flat_map(Rules::counters))?,
                };
                control::push(&mut guest.ports, port)
            }
            Kind::Block(disk) => control::push(&mut guest.blocks, disk.count(self.shared)?),
            Kind::Entropy { counters } => {
                let entropy = control::Entropy {
                    requests: counters.requests.get(),
                    bytes: counters.bytes.get(),
                    starved: counters.starved.get(),
                    limited: counters.limited.get(),
                    interrupts: device.interrupts.get(),
                    kicks: device.kicks.get(),
                    engine_cycles: device.engine_cycles.get(),
                    resets: device.resets.get(),
                    stale_tokens: device.stale_tokens.get(),
                    ring_errors: device.faults.get(),
                };
                control::push(&mut guest.entropy, entropy)
            }
            Kind::Console(ports) => {
                let console = control::Console {
                    interrupts: device.interrupts.get(),
                    kicks: device.kicks.get(),
                    engine_cycles: device.engine_cycles.get(),
                    resets: device.resets.get(),
                    ring_errors: device.faults.get(),
                    ..ports.counters()?
                };
                control::push(&mut guest.consoles, console)
            }
        }
    }
}
