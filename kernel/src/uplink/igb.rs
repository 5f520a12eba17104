//! Intel's 82576 or I350 as uplink. It has one receive queue, so `steering` changes nothing.

use super::intel::{self, Bit, Parts};
use crate::pci::Function;
use alloc::{format, string::String};
use config::NicNeeds;
use igb::{Config, Filter, Guarded, Igb};
use intel_nic::registers::Mmio;
use net::uplink::Held;

/// Descriptors of the transmit queue. A frame takes two or more of them.
const TRANSMIT: u32 = 1024;

/// The driver.
pub type Device = Guarded<Mmio, Held, Bit>;

/// Returns the name of a function in the report, or `None` if it is none of these.
pub fn name(function: &Function) -> Option<&'static str> {
    igb::id::name(function.vendor, function.device)
}

/// Sets up a function that has a [`name`]. Waits until it runs, but not for long.
///
/// # Errors
/// Its BAR is unusable, there is no memory for it, the guests' frames are too long, or it does not come out of reset.
pub fn open(function: Function, needs: &NicNeeds<'_>) -> Result<Device, String> {
    let kind = igb::id::kind(function.vendor, function.device).ok_or("it is neither an 82576 nor an I350")?;
    let config = Config { max_frame: needs.max_frame, transmit_descriptors: TRANSMIT, ..Config::default() };
    let Parts { bit, registers, memory } = intel::take(function, config.memory())?;
    let vlans = needs.vlans.map(<[u16]>::to_vec);
    // The NIC receives all addresses until the engine sets a filter for its guests.
    let filter = Filter { vlans, ..Filter::all() };
    let nic = Igb::new(registers, kind, memory, config, filter).map_err(|e| format!("{e}"))?;
    intel::bring_up(nic, bit)
}
