//! Intel's NICs as uplinks: what the drivers have in common. Their BAR, their memory, and their bit in the command register.

#![allow(unsafe_code, reason = "gives a device memory, its registers to a driver, and its right to master the bus")]

use crate::{arch::time, mem, pci::Function};
use alloc::{format, string::String};
use core::ptr::{self, NonNull};
use intel_nic::{
    dma::DmaBuffer,
    guarded::{BusMaster, Device, Guarded},
    registers::{BAR_BYTES, Mmio},
};
use nic::Nic as _;

/// Most microseconds that the boot waits for bring-up. A longer bring-up goes on while the guests start.
const PATIENCE: u64 = 3_000_000;

/// The bus master enable bit of a function that nobody else drives.
pub struct Bit(Function);

// SAFETY: a function cannot master the bus while this bit of its command register is 0. Nothing else sets the bit.
unsafe impl BusMaster for Bit {
    fn set(&mut self, on: bool) -> bool {
        self.0.set_bus_master(on)
    }
}

/// What a driver needs of a function.
pub struct Parts {
    /// Its bus mastering, which is off.
    pub bit: Bit,
    /// Its registers.
    pub registers: Mmio,
    /// Memory for rings and buffers.
    pub memory: DmaBuffer,
}

/// Takes a function that one of the drivers knows, with `bytes` of memory.
///
/// # Errors
/// Its BAR is unusable, or there is no memory for it.
pub fn take(function: Function, bytes: usize) -> Result<Parts, String> {
    let (base, _) = function.take_registers(BAR_BYTES as u64, BAR_BYTES as u64)?;
    let memory = mem::pages(bytes as u64).map_err(|e| format!("{e}"))?;
    let (Some(memory_at), Some(registers)) = (pointer(memory), pointer(base)) else {
        return Err("memory at address 0".into());
    };
    // SAFETY: the hypervisor owns these pages and never gives them back. They have the same address for it and the
    // device.
    let memory = unsafe { DmaBuffer::new(memory_at, memory, bytes) };
    // SAFETY: this is BAR 0 of a device that the driver knows. It was mapped above, uncached. Nobody else drives the
    // device.
    let registers = unsafe { Mmio::new(registers.cast()) };
    Ok(Parts { bit: Bit(function), registers, memory })
}

fn pointer(at: u64) -> Option<NonNull<u8>> {
    NonNull::new(ptr::with_exposed_provenance_mut(at as usize))
}

/// Services the NIC until it runs and has done what it can for its link, or has failed, but no longer than [`PATIENCE`].
///
/// # Errors
/// It does not come out of reset.
pub fn bring_up<N: Device>(nic: N, bit: Bit) -> Result<Guarded<N, Bit>, String> {
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
