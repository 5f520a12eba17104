//! What a guest has for as long as sidecore runs: memory, nested tables, devices, what its vCPUs keep.
//!
//! Memory of the hypervisor is handed out once and never given back, so a guest takes all of this before its first life
//! and has it in every later one.

#![allow(unsafe_code, reason = "makes guest memory from frames")]

use super::{device::Device, vcpu};
use crate::{engines, mem, virt};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use config::Completion;
use machine::layout;
use memory::{
    GuestMemory, Region,
    swap::Shadow,
    tables::{Access, MapError, Tables},
};
use spin::Mutex;

const _: () = assert!(config::MAX_DEVICES <= machine::pci::MAX_FUNCTIONS);

/// What a guest has.
pub struct Resources {
    /// Its memory.
    pub memory: GuestMemory,
    /// Root of its nested tables.
    pub nested_root: u64,
    /// For a guest with a shadow IDT: its nested tables, which can change.
    pub shadow: Option<&'static Mutex<Shadow>>,
    /// Its devices, in the order of the configuration.
    pub devices: Vec<Device>,
    /// What each of its vCPUs keeps.
    pub vcpus: Vec<vcpu::Kept>,
    /// Bytes the hypervisor spent on it beside its memory.
    pub bytes: u64,
}

impl Resources {
    /// Takes what the guest of `config` with so many vCPUs needs. `slot` is the first of its
    /// devices' slots with the engine; `all` is the whole configuration.
    ///
    /// # Errors
    /// Something is missing: what, for the operator.
    pub fn take(all: &config::Config, config: &config::Guest, vcpus: usize, slot: usize) -> Result<Self, String> {
        let before = mem::used();
        let at = mem::FRAMES.lock().guest(config.memory).map_err(|e| format!("its memory: {e}"))?;
        let (low, high) = layout::memory_split(config.memory);
        let mut memory = GuestMemory::new();
        let mut tables = virt::nested_tables().map_err(|e| format!("its nested tables: {e}"))?;
        for (gpa, size, host) in [(0, low, at), (layout::HIGH_MEMORY, high, at + low)] {
            if size == 0 {
                continue;
            }
            let region = Region { gpa, size, host: core::ptr::with_exposed_provenance_mut(host as usize) };
            // SAFETY: the frames were free, are mapped at their physical address, and are this guest's for good.
            unsafe { memory.add(region) }.map_err(|r| format!("its memory: {r:?} does not fit"))?;
            map(&mut tables, gpa, host, size).map_err(|e| format!("its nested tables: {e}"))?;
        }
        let nested_root = tables.root();
        let shadow = if config.completion == Completion::Eli {
            let shadow = Shadow::new(tables, &mut *mem::FRAMES.lock()).map_err(|e| format!("its shadow IDT: {e}"))?;
            Some(&*Box::leak(Box::new(Mutex::new(shadow))))
        } else {
            None
        };
        let engine = engines::get(0).ok_or("there is no engine")?;
        let devices = config.devices.iter().zip(slot..).map(|(device, slot)| Device::new(all, device, engine, slot));
        let devices = devices.collect::<Result<_, _>>()?;
        let vcpus = (0..vcpus).map(|_| vcpu::Kept::take()).collect::<Result<_, _>>()?;
        Ok(Self { memory, nested_root, shadow, devices, vcpus, bytes: mem::used() - before })
    }
}

fn map(tables: &mut Tables, gpa: u64, host: u64, size: u64) -> Result<(), MapError> {
    tables.map(gpa, host, size, Access::RWX, &mut *mem::FRAMES.lock())
}
