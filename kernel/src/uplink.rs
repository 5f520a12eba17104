//! The engine's ways out of the machine: finds the NICs that the configuration names, and sets them up. Their interrupts stay
//! off, and nothing of them is visible to a guest.

mod virtio;
mod x520;

use crate::{
    arch::time,
    firmware, report,
    rules::{self, Rules},
};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};
use config::{Config, PciDevice, Steering, Vlan};
use control::Count;
use drivers::pci::Address;
use engine::{
    policy::Policy,
    stats::UplinkCounters,
    uplink::{Held, MAX_UPLINKS, Uplink},
};
use nic::{
    HEADER_ROOM, LeftOut, Limits, Link, Nic as _, Outcome, Outgoing, Received, Refused, Single, Statistics, Wanted,
};
use spin::Once;

/// The NIC behind an uplink.
#[expect(clippy::large_enum_variant, reason = "there is one, and the hardware's way to its driver is to be short")]
pub enum Nic {
    /// What a virtual machine has.
    Virtio(Box<virtio::Device>),
    /// Intel's 82599.
    X520(x520::Device),
}

/// An uplink of the configuration.
pub enum WayOut {
    /// Its NIC, for the engine.
    Nic(Box<Uplink<Nic>>),
    /// There is none that can be used. These are its rules.
    Missing(Option<&'static Policy>),
}

/// What the control core knows of an uplink.
struct Known {
    name: String,
    device: Option<Address>,
    /// What its frames may do, if not everything.
    rules: Option<Rules>,
}

/// Bytes of memory that the NICs take at most.
pub fn memory(config: &Config) -> u64 {
    let devices = devices(config);
    // A virtio device takes less.
    config.ports.iter().filter(|port| port.device.is_some()).map(|port| x520::memory(port.steering, devices)).sum()
}

/// Guests' network devices.
fn devices(config: &Config) -> usize {
    config.guests.iter().map(|guest| guest.nets.len()).sum()
}

/// What a NIC has to be like.
pub struct Needs<'a> {
    /// Bytes of the longest frame of any guest, without FCS and VLAN tag.
    pub max_frame: u32,
    /// VLANs whose tagged frames come in.
    pub vlan: &'a Vlan,
    /// What decides among its receive queues.
    pub steering: Steering,
    /// Guests' network devices.
    pub devices: usize,
}

const _: () = assert!(config::MAX_UPLINKS <= MAX_UPLINKS);

/// In the order of the configuration, as all that is here of several uplinks.
static KNOWN: Once<Vec<Known>> = Once::new();
static COUNTERS: [UplinkCounters; MAX_UPLINKS] = [const { UplinkCounters::new() }; MAX_UPLINKS];

/// Sets up the NICs that the configuration names, and reports of each. `max_frame` is what the guests send at most, in
/// bytes without FCS and VLAN tag. Called once.
pub fn open_all(config: &Config, max_frame: u32) -> Vec<WayOut> {
    let mut known: Vec<Known> = Vec::new();
    let mut ways = Vec::new();
    let devices = devices(config);
    for (port, counters) in config.ports.iter().zip(&COUNTERS) {
        let rules = rules::of_uplink(config, &port.rules);
        let policy = rules.as_ref().map(|rules| rules.policy);
        // What another port names is not the first one that is free.
        let named = config.ports.iter().filter_map(|other| match other.device {
            Some(PciDevice::At(bus, device, function)) if port.device == Some(PciDevice::First) => {
                Some(Address { bus, device, function })
            }
            _ => None,
        });
        let taken: Vec<Address> = known.iter().filter_map(|other| other.device).chain(named).collect();
        let opened = match port.device {
            Some(device) => {
                let needs = Needs { max_frame, vlan: &port.rules.vlan, steering: port.steering, devices };
                open(device, &taken, &needs)
            }
            None => Err("there is a mistake in its entry".into()),
        };
        let device = match opened {
            Ok(Opened { nic, at, said }) => {
                report::decision(format!("uplink {}: {said}", port.name));
                let uplink = Uplink::new(nic, counters, time::rates().tsc / 1_000_000);
                let uplink = match policy {
                    Some(policy) => uplink.with_policy(policy),
                    None => uplink,
                };
                ways.push(WayOut::Nic(Box::new(uplink)));
                Some(at)
            }
            Err(why) => {
                report::warning(format!("no uplink {}, its guests reach other guests only: {why}", port.name));
                ways.push(WayOut::Missing(policy));
                None
            }
        };
        known.push(Known { name: port.name.clone(), device, rules });
    }
    KNOWN.call_once(|| known);
    ways
}

/// What happened on the uplinks.
pub fn counters() -> Vec<control::Uplink> {
    let all = KNOWN.get().map_or(&[][..], |known| known).iter().zip(&COUNTERS);
    all.map(|(known, counters)| control::Uplink {
        name: known.name.clone(),
        device: known.device.map_or_else(String::new, |at| at.to_string()),
        counts: counters.iter().map(|(kind, count)| Count { kind: kind.into(), count }).collect(),
        stages: known.rules.iter().flat_map(Rules::counters).collect(),
    })
    .collect()
}

struct Opened {
    nic: Nic,
    at: Address,
    /// What the report says of it.
    said: String,
}

/// Sets up one, which is none of those `taken`.
fn open(wanted: PciDevice, taken: &[Address], needs: &Needs<'_>) -> Result<Opened, String> {
    let (_, functions) = firmware::functions().ok_or("PCI was not scanned")?;
    let named = |at: Address| match wanted {
        PciDevice::First => !taken.contains(&at),
        PciDevice::At(bus, device, function) => at == Address { bus, device, function },
    };
    let candidates = || functions.iter().filter(|f| named(f.at));
    let mut trouble = String::new();
    for &found in candidates() {
        let (name, nic) = if let Some(name) = virtio::name(&found) {
            (name, virtio::open(&found).map(|device| Nic::Virtio(Box::new(device))))
        } else if let Some(name) = x520::name(&found) {
            (name, x520::open(found, needs).map(Nic::X520))
        } else {
            continue;
        };
        match nic {
            Ok(nic) => {
                let m = nic.address();
                let queues = match (nic.limits().receive_queues, needs.steering) {
                    (1, Steering::None) => String::new(),
                    (1, _) => ", with one receive queue, so that there is nothing to steer".into(),
                    (n, Steering::Addresses) => format!(", {n} receive queues for guests' addresses"),
                    (n, _) => format!(", {n} receive queues for flows"),
                };
                let said = format!(
                    "{name} at {}, {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}{queues}; no IOMMU keeps it from any memory, so it \
                     and whoever made it have to be trusted{trouble}",
                    found.at, m[0], m[1], m[2], m[3], m[4], m[5]
                );
                return Ok(Opened { nic, at: found.at, said });
            }
            Err(why) => trouble = format!("{trouble}; left alone: the {name} at {}: {why}", found.at),
        }
    }
    Err(match candidates().next() {
        _ if !trouble.is_empty() => trouble.trim_start_matches("; left alone: ").into(),
        Some(f) if wanted != PciDevice::First => {
            format!("the device at {wanted} is {:04x}:{:04x}, for which there is no driver", f.vendor, f.device)
        }
        _ if wanted == PciDevice::First && taken.is_empty() => "no NIC for which there is a driver".into(),
        _ if wanted == PciDevice::First => "no further NIC for which there is a driver".into(),
        _ => format!("there is no device at {wanted}"),
    })
}

/// Calls the same method of whichever it is.
macro_rules! of_either {
    ($nic:expr, $device:ident => $call:expr) => {
        match $nic {
            Nic::Virtio($device) => $call,
            Nic::X520($device) => $call,
        }
    };
}

impl nic::Nic for Nic {
    type Token = Held;

    fn address(&self) -> [u8; 6] {
        of_either!(self, nic => nic.address())
    }

    fn limits(&self) -> Limits {
        of_either!(self, nic => nic.limits())
    }

    fn link(&self) -> Link {
        of_either!(self, nic => nic.link())
    }

    fn statistics(&self) -> Statistics {
        of_either!(self, nic => nic.statistics())
    }

    fn service(&mut self, now: u64) -> bool {
        of_either!(self, nic => nic.service(now))
    }

    fn let_in(&mut self, wanted: &Wanted<'_>) -> LeftOut {
        of_either!(self, nic => nic.let_in(wanted))
    }

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        of_either!(self, nic => nic.receive(queue, budget, sink))
    }

    #[inline(always)]
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: Held) -> Result<(), (Refused, Held)> {
        of_either!(self, nic => nic.transmit(queue, frame, token))
    }

    #[inline(always)]
    fn transmit_all<'a, I>(
        &mut self,
        queue: u16,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<Single<Held>>,
    ) -> (usize, Option<(Refused, Held)>) {
        of_either!(self, nic => nic.transmit_all(queue, items, write))
    }

    #[inline(always)]
    fn flush(&mut self, queue: u16) {
        of_either!(self, nic => nic.flush(queue));
    }

    #[inline(always)]
    fn reclaim(&mut self, queue: u16, done: impl FnMut(Held, Outcome)) -> u32 {
        of_either!(self, nic => nic.reclaim(queue, done))
    }
}
