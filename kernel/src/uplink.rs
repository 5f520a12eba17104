//! The engine's way out of the machine: finds a NIC for which there is a driver, and sets it up. Its interrupts stay off,
//! and nothing of it is visible to a guest.

mod virtio;
mod x520;

use crate::{arch::time, firmware, rules::Rules};
use alloc::{boxed::Box, format, string::String};
use config::PciDevice;
use drivers::pci::Address;
use engine::{
    stats::UplinkCounters,
    uplink::{Held, Uplink},
};
use nic::{Limits, Link, Nic as _, Outcome, Outgoing, Received, Refused, Statistics};
use spin::Once;

/// The NIC behind an uplink.
#[expect(clippy::large_enum_variant, reason = "there is one, and the hardware's way to its driver is to be short")]
pub enum Nic {
    /// What a virtual machine has.
    Virtio(Box<virtio::Device>),
    /// Intel's 82599.
    X520(x520::Device),
}

/// What happened on the uplink.
pub static COUNTERS: UplinkCounters = UplinkCounters::new();
/// What its frames may do, if not everything.
pub static RULES: Once<Rules> = Once::new();

/// Sets up the NIC that the configuration names; `max_frame` is what the guests send at most, in bytes without FCS and VLAN
/// tag. With it comes a sentence for the report.
///
/// # Errors
/// There is none, there is no driver for it, or it does not do as it should.
pub fn open(wanted: PciDevice, max_frame: u32) -> Result<(Uplink<Nic>, String), String> {
    let (_, functions) = firmware::functions().ok_or("PCI was not scanned")?;
    let named = |at: Address| match wanted {
        PciDevice::First => true,
        PciDevice::At(bus, device, function) => at == Address { bus, device, function },
    };
    let candidates = || functions.iter().filter(|f| named(f.at));
    let mut trouble = String::new();
    for &found in candidates() {
        let (name, nic) = if let Some(name) = virtio::name(&found) {
            (name, virtio::open(&found).map(|device| Nic::Virtio(Box::new(device))))
        } else if let Some(name) = x520::name(&found) {
            (name, x520::open(found, max_frame).map(Nic::X520))
        } else {
            continue;
        };
        match nic {
            Ok(nic) => {
                let m = nic.address();
                let said = format!(
                    "uplink: {name} at {}, {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}; no IOMMU keeps it from any memory, so it \
                     and whoever made it have to be trusted{trouble}",
                    found.at, m[0], m[1], m[2], m[3], m[4], m[5]
                );
                return Ok((Uplink::new(nic, &COUNTERS, time::rates().tsc / 1_000_000), said));
            }
            Err(why) => trouble = format!("{trouble}; left alone: the {name} at {}: {why}", found.at),
        }
    }
    Err(match candidates().next() {
        _ if !trouble.is_empty() => trouble.trim_start_matches("; left alone: ").into(),
        Some(f) if wanted != PciDevice::First => {
            format!("the device at {wanted} is {:04x}:{:04x}, for which there is no driver", f.vendor, f.device)
        }
        _ if wanted == PciDevice::First => "no NIC for which there is a driver".into(),
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

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        of_either!(self, nic => nic.receive(queue, budget, sink))
    }

    #[inline(always)]
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: Held) -> Result<(), (Refused, Held)> {
        of_either!(self, nic => nic.transmit(queue, frame, token))
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
