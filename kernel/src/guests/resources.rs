//! A guest's resources: memory, nested tables, devices, and the vCPUs' pages and histograms.
//!
//! The hypervisor's memory is handed out once and never given back. So a guest takes its resources before its first
//! life and keeps them for all later ones.

#![allow(unsafe_code, reason = "makes guest memory from frames")]

use super::{device::Device, ports::ConsolePorts, room::PART_BYTES, vcpu};
use crate::{
    cores::Core,
    engines,
    heap::{self, For},
    mem, virt,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use config::Completion;
use machine::{
    layout,
    splitter::{SplitTables, Splitter},
};
use memory::{
    GuestMemory, Region,
    frames::{OutOfMemory, PAGE},
    maps::{GuestLayout, Range},
    split::Pool,
    swap::Shadow,
    tables::{Access, FrameSource},
};
use spin::Mutex;

const _: () = assert!(config::MAX_DEVICES <= machine::pci::MAX_FUNCTIONS);

/// The resources of a guest.
pub struct Resources {
    /// Its memory.
    pub memory: GuestMemory,
    /// Root of its nested tables.
    pub nested_root: u64,
    /// Its nested tables, if it has a shadow IDT. Only then can they change.
    pub shadow: Option<&'static Mutex<Shadow>>,
    /// Makes its pages executable, if the CPU needs that.
    pub splitter: Option<&'static Splitter>,
    /// Its devices, in the order of the configuration.
    pub devices: Vec<Device>,
    /// The resources of each vCPU.
    pub vcpus: Vec<vcpu::Kept>,
    /// Bytes that the hypervisor spent on the guest beside the guest's memory.
    pub bytes: u64,
    /// The frames of its nested tables, and those for changes of them.
    tables: Vec<Range>,
    /// Its part of the heap.
    heap: Range,
}

/// Frames of the hypervisor, with a list of those that were taken.
struct Noted(Vec<Range>);

impl FrameSource for Noted {
    fn frame(&mut self) -> Result<u64, OutOfMemory> {
        let at = mem::FRAMES.lock().frame()?;
        match self.0.last_mut() {
            Some((_, end)) if *end == at => *end = (*end).saturating_add(PAGE),
            _ => self.0.push((at, at.saturating_add(PAGE))),
        }
        Ok(at)
    }
}

impl Resources {
    /// Its part of the memory, for the maps of the cores.
    pub fn layout(&self) -> GuestLayout {
        let memory = self.memory.regions().iter().map(|region| {
            let start = region.host.expose_provenance() as u64;
            (start, start.saturating_add(region.size))
        });
        let pages = self.vcpus.iter().flat_map(vcpu::Kept::ranges);
        GuestLayout {
            memory: memory.collect(),
            state: pages.chain(self.tables.iter().copied()).collect(),
            heap: [self.heap].into(),
        }
    }

    /// Its console device with the ports of it, if it has one.
    pub fn console(&self) -> Option<(&Device, &ConsolePorts)> {
        self.devices.iter().find_map(|device| Some((device, device.console()?)))
    }

    /// Takes the resources for guest `number`, that of `config`. `cores` are those of its vCPUs. `slot` is the engine's slot
    /// for its first device; the others follow. `all` is the whole configuration.
    ///
    /// # Errors
    /// Something is missing; the text tells the operator what.
    pub fn take(
        number: usize,
        all: &config::Config,
        config: &config::Guest,
        cores: &[&'static Core],
        slot: usize,
    ) -> Result<Self, String> {
        let before = mem::used();
        let heap = heap::make_part(number, PART_BYTES);
        let heap = heap.map_err(|e| format!("its part of the heap: {e}"))?;
        let _own = For::guest(number);
        let at = mem::FRAMES.lock().guest(config.memory).map_err(|e| format!("its memory: {e}"))?;
        let (low, high) = layout::memory_split(config.memory);
        let mut memory = GuestMemory::new();
        let mut frames = Noted(Vec::new());
        let mut tables = virt::nested_tables(&mut frames).map_err(|e| format!("its nested tables: {e}"))?;
        for (gpa, size, host) in [(0, low, at), (layout::HIGH_MEMORY, high, at.saturating_add(low))] {
            if size == 0 {
                continue;
            }
            let region = Region { gpa, size, host: core::ptr::with_exposed_provenance_mut(host as usize) };
            // SAFETY: the frames were free, and this guest owns them from now on. A core that works for the guest maps them
            // at their physical address, and only such a core uses them: the control core while it loads the guest, an
            // engine's core while it has a device of the guest, the guest's own cores.
            unsafe { memory.add(region) }.map_err(|r| format!("its memory: {r:?} does not fit"))?;
            tables.map(gpa, host, size, Access::RWX, &mut frames).map_err(|e| format!("its nested tables: {e}"))?;
        }
        let nested_root = tables.root();
        let (shadow, tables) = if config.completion == Completion::Eli {
            let shadow = Shadow::new(tables, &mut frames).map_err(|e| format!("its shadow IDT: {e}"))?;
            let shadow = &*Box::leak(Box::new(Mutex::new(shadow)));
            (Some(shadow), SplitTables::Shadowed(shadow))
        } else {
            (None, SplitTables::Alone(Mutex::new(tables)))
        };
        let splitter = if virt::needs_splits() {
            let pool = Pool::take(config.memory, &mut frames);
            let pool = pool.map_err(|e| format!("tables for its executable pages: {e}"))?;
            Some(&*Box::leak(Box::new(Splitter::new(tables, pool))))
        } else {
            None
        };
        let engine = engines::get(0).ok_or("there is no engine")?;
        let devices = config.devices.iter().zip(slot..).map(|(device, slot)| Device::new(all, device, engine, slot));
        let devices = devices.collect::<Result<_, _>>()?;
        let vcpus =
            cores.iter().map(|core| vcpu::Kept::take(number, core, all.trace.memory)).collect::<Result<_, _>>()?;
        Ok(Self {
            memory,
            nested_root,
            shadow,
            splitter,
            devices,
            vcpus,
            bytes: mem::used().saturating_sub(before),
            tables: frames.0,
            heap,
        })
    }
}
