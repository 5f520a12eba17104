//! Makes the disks of the configuration. A RAM disk keeps its contents until the process ends, whatever its front-end
//! does.

#![allow(unsafe_code, reason = "asks for zeroed memory that several threads may access")]

use std::alloc::{Layout, alloc_zeroed};
use std::fs;
use std::sync::atomic::{AtomicU8, AtomicU32};

use anyhow::{Context as _, Result, ensure};
use block::backend::SERIAL_BYTES;
use block::device::{self, Options};
use block::pair::Either;
use block::ram::{OVERLAY_BLOCK, Overlay, OverlayMemory, RamDisk};
use memory::host::HostMemory;
use virtio::config::{DeviceConfig, Features};

use crate::config::{self, Cache};
use crate::file::FileDisk;

/// Alignment of a disk's memory.
const PAGE: usize = 4096;
/// Offset of `seg_max` in the configuration (virtio 1.3 5.2.4).
const SEG_MAX: usize = 12;
/// Descriptors of a queue that every front-end may be expected to use. QEMU's default is 128.
const USUAL_QUEUE_SIZE: u16 = 128;

/// What a disk's contents are in.
pub type Volume = Either<&'static RamDisk, &'static FileDisk>;

/// A disk, and the configuration of its device.
pub struct Disk {
    /// What the back-end must know of it.
    pub backend: block::backend::Disk<Volume>,
    /// What the front-end finds.
    pub device: DeviceConfig,
}

impl Disk {
    /// Makes a disk with the memory that it needs, or opens its file.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is no disk, or there is no memory.
    pub fn make(config: &config::Disk) -> Result<Self> {
        let (volume, geometry, record) = match &config.file {
            Some(file) => {
                let disk: &'static FileDisk = Box::leak(Box::new(FileDisk::open(file, config.readonly)?));
                (Either::Second(disk), disk.geometry, Some(&disk.flushes))
            }
            None => {
                let ram: &'static RamDisk = Box::leak(Box::new(ram(config)?));
                (Either::First(ram), ram.geometry(), None)
            }
        };
        let options = Options { queues: config.queues, packed: true, writeback: config.cache == Cache::Writeback };
        let base = device::config(&geometry, &options);
        let mut device = DeviceConfig {
            // The front-end resets queues by itself.
            features: base.features & !Features::RING_RESET.bits(),
            queue_size: config.queue_size,
            ..base
        };
        // The front-end chooses the size of its queues, and does not ask here. A request must not have more descriptors
        // than its queue (virtio 1.3 2.7.5.3.1). Header and status take two.
        let most = u32::from(config.queue_size.min(USUAL_QUEUE_SIZE)).saturating_sub(2).max(1);
        device.config.iter_mut().skip(SEG_MAX).zip(most.to_le_bytes()).for_each(|(place, byte)| *place = byte);
        let mut serial = [0; SERIAL_BYTES];
        serial.iter_mut().zip(config.serial().bytes()).for_each(|(place, byte)| *place = byte);
        let counters = Box::leak(Box::default());
        Ok(Self { backend: block::backend::Disk { volume, serial, counters, record }, device })
    }
}

fn ram(config: &config::Disk) -> Result<RamDisk> {
    let Some(image) = &config.image else {
        let bytes = config.size.context("no size")?.0;
        return Ok(RamDisk::of_memory(HostMemory::new(bytes_of(bytes)?), config.readonly));
    };
    let base = fs::read(image).with_context(|| format!("image = {}: cannot read it", image.display()))?;
    ensure!(!base.is_empty(), "image = {}: expected a file with contents", image.display());
    let base: &'static [u8] = Vec::leak(base);
    if config.readonly {
        return Ok(RamDisk::of_base(base));
    }
    let blocks = match &config.overlay {
        Some(size) => size.0 / OVERLAY_BLOCK as u64,
        None => base.len().div_ceil(OVERLAY_BLOCK) as u64,
    };
    Ok(RamDisk::of_overlay(Overlay::new(
        base,
        OverlayMemory {
            map: words_of(Overlay::map_entries(base.len()) as u64)?,
            returned: words_of(blocks)?,
            data: HostMemory::new(bytes_of(blocks * OVERLAY_BLOCK as u64)?),
        },
    )))
}

/// Returns zeroed memory. Linux gives a page of it when the page is first written.
fn zeroed(bytes: u64) -> Result<(*mut u8, usize)> {
    let refused = || format!("there is no memory for {bytes} bytes");
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes != 0).with_context(refused)?;
    let layout = Layout::from_size_align(bytes, PAGE).ok().with_context(refused)?;
    // SAFETY: the layout's size is not 0.
    let start = unsafe { alloc_zeroed(layout) };
    ensure!(!start.is_null(), refused());
    Ok((start, bytes))
}

fn bytes_of(bytes: u64) -> Result<&'static [AtomicU8]> {
    let (start, bytes) = zeroed(bytes)?;
    // SAFETY: new memory of this length that is never freed; nobody else has a pointer to it. Zero is a valid atomic.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), bytes) })
}

fn words_of(words: u64) -> Result<&'static [AtomicU32]> {
    let (start, bytes) = zeroed(words.saturating_mul(4))?;
    // SAFETY: as in `bytes_of`; the memory is page-aligned, and so many words long.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), bytes / 4) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(text: &str) -> Result<Disk> {
        let config: config::Disk = toml::from_str(text).unwrap();
        Disk::make(&config)
    }

    fn word(device: &DeviceConfig, at: usize) -> u32 {
        u32::from_le_bytes(device.config[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn a_request_fits_in_the_smallest_usual_queue() {
        let of = |keys: &str| disk(&format!("socket = \"a\"\nsize = \"1M\"\n{keys}")).unwrap().device;
        let device = of("queues = 4");
        assert_eq!((word(&device, 0), word(&device, SEG_MAX), device.queues), (2048, 126, 4));
        assert_eq!(word(&of("queue-size = 64"), SEG_MAX), 62);
        assert_eq!(word(&of("queue-size = 2"), SEG_MAX), 1);
        assert_eq!(device.features & Features::RING_RESET.bits(), 0);
    }

    #[test]
    fn a_file_that_is_not_there_or_empty_is_named() {
        let error = |key: &str, file: &str| {
            format!("{:#}", disk(&format!("socket = \"a\"\n{key} = \"{file}\"")).err().unwrap())
        };
        assert!(error("image", "/no/such").contains("/no/such: cannot read it"));
        assert!(error("image", "/dev/null").contains("/dev/null: expected a file with contents"));
        assert!(error("file", "/no/such").contains("/no/such: cannot open it"));
        assert!(error("file", "/").contains("file = /: "), "a folder");
    }
}
