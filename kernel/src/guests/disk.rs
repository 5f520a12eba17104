//! The disk beneath a guest's block device. It is made once and kept over all lives of the guest.

use crate::{arch::time::now_micros, disks, mem, modules};
use alloc::{boxed::Box, format, string::String};
use block::{
    backend::SERIAL_BYTES,
    counters::BlockCounters,
    device::{self, Options},
    emulate::{Emulated, EmulationCounters},
    failures::Failures,
    pair::Either,
    part::Part,
    ram::{OVERLAY_BLOCK, Overlay, OverlayMemory, RamDisk},
    storage::Geometry,
};
use config::{Cache, Disk as Beneath};
use control::NoMemory;
use core::sync::atomic::{AtomicBool, Ordering};
use memory::host::HostMemory;
use virtio::config::DeviceConfig;

/// An overlay is reported when this many percent of its blocks are in use.
const REPORTED_PERCENT: u64 = 80;
/// It is reported again only if fewer percent than this were in use meanwhile.
const FORGOTTEN_PERCENT: u64 = 70;

/// A volume of one of an engine's storages.
type Volume = Either<&'static RamDisk, Emulated<Part<disks::Whole>>>;

/// A block device's disk.
pub struct Disk {
    serial: String,
    volume: Volume,
    counters: &'static BlockCounters,
    /// Whether the overlay's use was reported.
    reported: AtomicBool,
    /// Its failed requests, as they were reported.
    failures: Failures,
}

impl Disk {
    /// Makes the disk of the configuration, with the memory that it needs, and its device's configuration.
    ///
    /// # Errors
    /// There is no memory or no such boot module; the text says which.
    pub fn make(block: &config::Block) -> Result<(Self, DeviceConfig), String> {
        let failed = |e| format!("its disk {}: {e}", block.serial);
        let in_memory = |ram: RamDisk| Either::First(&*Box::leak(Box::new(ram)));
        let volume: Volume = match &block.disk {
            Beneath::Ram { bytes } => {
                let memory = HostMemory::new(mem::shared_bytes(*bytes).map_err(failed)?);
                in_memory(RamDisk::of_memory(memory, block.read_only))
            }
            Beneath::Module { name, overlay, unpacked, .. } => {
                let base = match unpacked {
                    Some(unpacked) => modules::unpacked(name, unpacked.bytes)?,
                    None => modules::find(name)?.bytes(),
                };
                in_memory(if block.read_only {
                    RamDisk::of_base(base)
                } else {
                    const BLOCK: u64 = OVERLAY_BLOCK as u64;
                    let blocks = overlay / BLOCK;
                    RamDisk::of_overlay(Overlay::new(
                        base,
                        OverlayMemory {
                            map: mem::shared_words(Overlay::map_entries(base.len()) as u64).map_err(failed)?,
                            returned: mem::shared_words(blocks).map_err(failed)?,
                            data: HostMemory::new(mem::shared_bytes(*overlay).map_err(failed)?),
                        },
                    ))
                })
            }
            Beneath::Machine(_) => {
                let volume = disks::part(block).map_err(|why| format!("its disk {}: {why}", block.serial))?;
                let counters = block.emulate.then(|| &*Box::leak(Box::<EmulationCounters>::default()));
                Either::Second(Emulated { volume, counters })
            }
        };
        let options =
            Options { queues: block.queues, packed: block.packed, writeback: block.cache == Cache::WriteBack };
        let config = device::config(&geometry(volume), &options);
        let counters = Box::leak(Box::default());
        let (reported, failures) = (AtomicBool::new(false), Failures::default());
        Ok((Self { serial: block.serial.clone(), volume, counters, reported, failures }, config))
    }

    /// Its serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// What its back-end must know of it.
    pub fn backend(&self) -> block::backend::Disk<Volume> {
        let mut serial = [0; SERIAL_BYTES];
        serial.iter_mut().zip(self.serial.bytes()).for_each(|(place, byte)| *place = byte);
        block::backend::Disk { volume: self.volume, serial, counters: self.counters, record: None }
    }

    /// Its overlay, if it has one.
    const fn overlay(&self) -> Option<&'static Overlay> {
        match self.volume {
            Either::First(ram) => ram.overlay(),
            Either::Second(_) => None,
        }
    }

    /// Reports a disk that begins to fail, and an overlay that is nearly full, each once. `guest` is the name of its guest.
    pub fn report(&self, guest: &str) {
        let failed = self.counters.storage_errors.get();
        // A full overlay has a report of its own.
        if self.overlay().is_none() && self.failures.look(failed, now_micros()) {
            log::warn!(
                "guest {guest}: disk {} has failed a request ({failed} since the start); further ones are only counted, \
                 unless a minute passes without one",
                self.serial
            );
        }
        let Some(overlay) = self.overlay() else { return };
        let (used, all) = (u64::from(overlay.used()), u64::from(overlay.blocks()));
        let hundred = used.saturating_mul(100);
        if hundred < all.saturating_mul(FORGOTTEN_PERCENT) {
            self.reported.store(false, Ordering::Relaxed);
        } else if hundred >= all.saturating_mul(REPORTED_PERCENT) && !self.reported.swap(true, Ordering::Relaxed) {
            log::warn!(
                "guest {guest}: the overlay of disk {} is {} % full: {used} of {all} blocks of 4 KiB",
                self.serial,
                hundred.checked_div(all).unwrap_or(0)
            );
        }
    }

    /// Its counters and its device's. The size is what the guest sees now.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn count(&self, shared: &virtio::shared::Shared) -> Result<control::Block, NoMemory> {
        let device = shared.counters();
        let overlay = self.overlay();
        let emulation = match self.volume {
            Either::Second(of) => of.counters,
            Either::First(_) => None,
        };
        let emulation = emulation.into_iter().flat_map(EmulationCounters::iter);
        let of_overlay = |value: fn(&Overlay) -> u32| overlay.map_or(0, |overlay| u64::from(value(overlay)));
        Ok(control::Block {
            serial: control::copy(&self.serial)?,
            size: device::capacity(shared),
            counts: super::counts::by_name(self.counters.iter().chain(emulation))?,
            overlay_blocks: of_overlay(Overlay::blocks),
            overlay_used: of_overlay(Overlay::used),
            overlay_most_used: of_overlay(Overlay::most_used),
            overlay_full: of_overlay(Overlay::full),
            interrupts: device.interrupts.get(),
            kicks: device.kicks.get(),
            arms: device.arms.get(),
            polls: device.polls.get(),
            engine_cycles: device.engine_cycles.get(),
            resets: device.resets.get(),
            stale_tokens: device.stale_tokens.get(),
            ring_errors: device.faults.get(),
        })
    }
}

/// The shape of a volume.
fn geometry(volume: Volume) -> Geometry {
    match volume {
        Either::First(ram) => ram.geometry(),
        Either::Second(of) => of.geometry(&of.volume.geometry(disks::shape(of.volume.whole()))),
    }
}
