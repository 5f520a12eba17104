//! Intel's 82599 as uplink.

use super::intel::{self, Bit, Parts};
use crate::{arch::time, pci::Function};
use alloc::{format, string::String};
use config::{NicNeeds, Optics, ReceiveQueues};
use intel_nic::registers::Mmio;
use net::uplink::Held;
use x520::{Config, Filter, Guarded, Steering, X520};

/// Descriptors of the transmit queue. A frame takes two or more of them.
const TRANSMIT: u32 = 1024;

/// The driver.
pub type Device = Guarded<Mmio, Held, Bit>;

/// Returns the name of a function in the report, or `None` if it is not an 82599.
pub fn name(function: &Function) -> Option<&'static str> {
    x520::id::name(function.vendor, function.device)
}

/// The driver's configuration.
fn config(steering: config::Steering, queues: ReceiveQueues) -> Config {
    let steering = match steering {
        config::Steering::None | config::Steering::Flows => Steering::Flows,
        config::Steering::Addresses => Steering::Addresses,
    };
    Config {
        steering,
        receive_queues: queues.count,
        receive_descriptors: queues.buffers,
        transmit_descriptors: TRANSMIT,
        ..Config::default()
    }
}

/// Bytes of memory for rings and buffers.
pub fn memory(steering: config::Steering, queues: ReceiveQueues) -> u64 {
    (config(steering, queues).memory() as u64).next_multiple_of(4096)
}

/// Makes an RSS key that nobody outside the machine can guess.
fn rss_key() -> [u8; 40] {
    let mut state = time::tsc() | 1;
    core::array::from_fn(|_| {
        // Xorshift with these shifts goes through all states but 0.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
}

/// Sets up a function that has a [`name`]. Waits until it runs, but not for long.
///
/// # Errors
/// Its BAR is unusable, there is no memory for it, or it does not come out of reset.
pub fn open(function: Function, needs: &NicNeeds<'_>) -> Result<Device, String> {
    let config = Config {
        max_frame: needs.max_frame,
        rss_key: rss_key(),
        medium: x520::id::medium(function.vendor, function.device).unwrap_or_default(),
        any_module: needs.optics == Optics::Any,
        ..config(needs.steering, needs.queues)
    };
    let Parts { bit, registers, memory } = intel::take(function, config.memory())?;
    let vlans = needs.vlans.map(<[u16]>::to_vec);
    // The NIC receives all addresses until the engine sets a filter for its guests.
    let nic = X520::new(registers, memory, config, Filter { vlans, ..Filter::all() }).map_err(|e| format!("{e:?}"))?;
    intel::bring_up(nic, bit)
}
