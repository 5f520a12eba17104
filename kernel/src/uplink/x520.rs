//! Intel's 82599 as uplink: its BAR, its memory, and its bit in the command register.

#![allow(unsafe_code, reason = "gives a device memory, its registers to a driver, and its right to master the bus")]

use crate::{arch::time, mem, pci::Function};
use alloc::{format, string::String};
use config::{NicNeeds, Optics, ReceiveQueues};
use core::ptr::{self, NonNull};
use net::uplink::Held;
use nic::Nic as _;
use x520::{
    BusMaster, Config, Filter, Guarded, Steering, X520,
    dma::DmaBuffer,
    registers::{BAR_BYTES, Mmio},
};

/// Descriptors of the transmit queue. A frame takes two or more of them.
const TRANSMIT: u32 = 1024;
/// Most microseconds that the boot waits for bring-up. A longer bring-up goes on while the guests start.
const PATIENCE: u64 = 3_000_000;

/// The driver.
pub type Device = Guarded<Mmio, Held, Bit>;

/// The bus master enable bit of a function that nobody else drives.
pub struct Bit(Function);

// SAFETY: a function cannot master the bus while this bit of its command register is 0. Nothing else sets the bit.
unsafe impl BusMaster for Bit {
    fn set(&mut self, on: bool) -> bool {
        self.0.set_bus_master(on)
    }
}

/// Returns the name of a function in the report, or `None` if it is not an 82599.
pub fn name(function: &Function) -> Option<&'static str> {
    x520::id::name(function.vendor, function.device)
}

/// Returns the name of one of Intel's NICs that this driver does not support, and what it would need.
pub fn needs(function: &Function) -> Option<(&'static str, &'static str)> {
    x520::id::needs(function.vendor, function.device)
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

/// Sets up a function that has a [`name`]. Waits until it runs, but no longer than [`PATIENCE`].
///
/// # Errors
/// Its BAR is unusable, there is no memory for it, or it does not come out of reset.
pub fn open(function: Function, needs: &NicNeeds<'_>) -> Result<Device, String> {
    let mut bit = Bit(function);
    if !bit.set(false) {
        return Err("configuration space is in use".into());
    }
    let bar = function.memory_bar(0).map_err(|e| format!("BAR 0 cannot be used: {e}"))?;
    if bar.size < BAR_BYTES as u64 {
        return Err(format!("BAR 0 has {:#x} bytes; expected {BAR_BYTES:#x} or more", bar.size));
    }
    mem::map_device(bar.base, BAR_BYTES as u64)
        .map_err(|e| format!("BAR 0 at {:#x} cannot be mapped: {e}", bar.base))?;
    function.enable_memory();
    let config = Config {
        max_frame: needs.max_frame,
        rss_key: rss_key(),
        any_module: needs.optics == Optics::Any,
        ..config(needs.steering, needs.queues)
    };
    let bytes = config.memory();
    let memory = mem::pages(bytes as u64).map_err(|e| format!("{e}"))?;
    let (Some(memory_at), Some(registers)) = (pointer(memory), pointer(bar.base)) else {
        return Err("memory at address 0".into());
    };
    // SAFETY: the hypervisor owns these pages and never gives them back. They have the same address for it and the
    // device.
    let memory = unsafe { DmaBuffer::new(memory_at, memory, bytes) };
    // SAFETY: this is BAR 0 of a device that the driver knows. It was mapped above, uncached. Nobody else drives the
    // device.
    let registers = unsafe { Mmio::new(registers.cast()) };
    let vlans = needs.vlans.map(<[u16]>::to_vec);
    // The NIC receives all addresses until the engine sets a filter for its guests.
    let nic = X520::new(registers, memory, config, Filter { vlans, ..Filter::all() }).map_err(|e| format!("{e:?}"))?;
    bring_up(nic, bit)
}

fn pointer(at: u64) -> Option<NonNull<u8>> {
    NonNull::new(ptr::with_exposed_provenance_mut(at as usize))
}

/// Services the NIC until it runs and has looked into its SFP+ cage, or has failed, but no longer than [`PATIENCE`].
fn bring_up(nic: X520<Mmio, Held>, bit: Bit) -> Result<Device, String> {
    let begin = time::now_micros();
    let mut device = Guarded::new(nic, bit, begin).ok_or("configuration space is in use")?;
    loop {
        let now = time::now_micros();
        device.service(now);
        if let Some(failure) = device.failure() {
            return Err(format!("it does not start: {failure:?}"));
        }
        if device.is_running() && device.is_settled() || now.saturating_sub(begin) > PATIENCE {
            return Ok(device);
        }
        core::hint::spin_loop();
    }
}
