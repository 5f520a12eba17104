//! A minimal virtio-blk driver with a vhost-user front-end (virtio 1.3 ch. 5.2). It plays a guest's part in tests of
//! `sidecore-vhost`.
//!
//! | file | what it does |
//! |---|---|
//! | `area` | the memory of one queue: rings, headers, status bytes, data |
//! | `queue` | the driver's half of a ring, split or packed |

mod area;
mod queue;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::memory::{Memory, Pages};
use crate::port::features::{EVENT_IDX, INDIRECT_DESC, RING_PACKED, VERSION_1};
use crate::ring_messages::set_ring;
use area::Area;
use queue::Queue;

pub use queue::Buffer;

/// Request types (virtio 1.3 5.2.6).
pub mod kind {
    /// Reads sectors.
    pub const IN: u32 = 0;
    /// Writes sectors.
    pub const OUT: u32 = 1;
    /// Makes completed writes durable.
    pub const FLUSH: u32 = 4;
    /// Reads the serial number.
    pub const GET_ID: u32 = 8;
    /// Says that sectors are not needed any more.
    pub const DISCARD: u32 = 11;
    /// Writes zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// The request succeeded.
pub const OK: u8 = 0;
/// The request failed.
pub const IOERR: u8 = 1;
/// The device has no such request.
pub const UNSUPP: u8 = 2;

/// Feature bits of the device and of its ring that [`Disk`] accepts by default: all but packed rings.
pub const FEATURES: u64 = 0xff_ffff | VERSION_1 | EVENT_IDX | INDIRECT_DESC;

/// The options of a disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Features to accept if they are offered.
    pub features: u64,
    /// Queues to set up.
    pub queues: usize,
    /// Descriptors of a queue, a power of two from 4 to 1,024. A request takes up to four.
    pub size: u16,
    /// Room for a request's data, in bytes.
    pub data: usize,
    /// Requests in flight are tracked, so that [`Disk::reconnect`] finds them answered.
    pub tracked: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { features: FEATURES, queues: 1, size: 64, data: 64 << 10, tracked: false }
    }
}

impl DiskOptions {
    /// The same, with packed rings.
    #[must_use]
    pub const fn packed(self) -> Self {
        Self { features: self.features | RING_PACKED, ..self }
    }
}

/// A disk that is set up.
pub struct Disk {
    /// What was negotiated.
    pub features: u64,
    /// The protocol's features that the back-end offers.
    pub protocol: u64,
    queues: Vec<Queue>,
    events: Vec<(EventFd, EventFd)>,
    frontend: Frontend,
    options: DiskOptions,
    /// The back-end's file for requests in flight.
    inflight: Option<(VhostUserInflight, File)>,
    // Unmapped after the queues are gone.
    memory: Memory,
}

/// The guest-physical address of the memory.
const GUEST: u64 = 0x10_0000;
/// Bytes of the configuration that are read: up to `write_zeroes_may_unmap`.
const CONFIG_BYTES: usize = 60;

/// Negotiates features. Returns those of the device, and the protocol's features that the back-end offers.
fn negotiate(frontend: &mut Frontend, options: &DiskOptions) -> Result<(u64, VhostUserProtocolFeatures)> {
    frontend.set_owner()?;
    let offered = frontend.get_features()?;
    let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    ensure!(offered & protocol_bit != 0, "the protocol's features are not offered: {offered:#x}");
    let features = offered & options.features;
    ensure!(features & VERSION_1 != 0, "VERSION_1 is not offered: {offered:#x}");
    let protocol = frontend.get_protocol_features()?;
    let mut wanted =
        VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ;
    wanted.set(VhostUserProtocolFeatures::INFLIGHT_SHMFD, options.tracked);
    frontend.set_protocol_features(protocol & wanted)?;
    let most = frontend.get_queue_num()?;
    ensure!(options.queues as u64 <= most, "{} queues: the back-end has {most}", options.queues);
    frontend.set_features(features | protocol_bit)?;
    Ok((features, protocol))
}

impl Disk {
    /// Connects to a back-end that listens at `path`, and starts the queues.
    pub fn connect(path: &Path, options: &DiskOptions) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        Self::start(stream, options).with_context(|| format!("cannot set up the disk at {}", path.display()))
    }

    fn start(stream: UnixStream, options: &DiskOptions) -> Result<Self> {
        let mut frontend = Frontend::from_stream(stream, options.queues as u64);
        let (features, protocol) = negotiate(&mut frontend, options)?;
        let inflight = if options.tracked {
            let wanted = VhostUserInflight::new(0, 0, options.queues as u16, options.size);
            Some(frontend.get_inflight_fd(&wanted).context("the back-end does not track requests")?)
        } else {
            None
        };
        let bytes = area::bytes(options.size, options.data);
        let memory = Memory::new((bytes * options.queues).next_multiple_of(2 << 20), Pages::Small)?;
        let packed = features & RING_PACKED != 0;
        let (mut queues, mut events) = (Vec::new(), Vec::new());
        for n in 0..options.queues {
            let start = memory.start().wrapping_add(n * bytes);
            let area = Area::new(start, GUEST + (n * bytes) as u64, options.size, options.data);
            queues.push(Queue::new(area, packed, features & EVENT_IDX != 0));
            events.push((EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?));
        }
        let (options, protocol) = (*options, protocol.bits());
        let mut disk = Self { features, protocol, queues, events, frontend, options, inflight, memory };
        disk.set_up()?;
        Ok(disk)
    }

    /// Gives the back-end memory and queues, as they are.
    fn set_up(&mut self) -> Result<()> {
        let Self { frontend, memory, options, .. } = self;
        if let Some((inflight, file)) = &self.inflight {
            frontend.set_inflight_fd(inflight, file.as_raw_fd())?;
        }
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: memory.len() as u64,
            userspace_addr: memory.start() as u64,
            mmap_offset: 0,
            mmap_handle: memory.file().as_raw_fd(),
        }])?;
        let packed = self.features & RING_PACKED != 0;
        let bytes = area::bytes(options.size, options.data);
        for (n, (kick, call)) in self.events.iter().enumerate() {
            let [desc, avail, used] = area::RINGS.map(|offset| memory.start() as u64 + (n * bytes + offset) as u64);
            // A front-end that tracks requests need not know where the back-end was.
            set_ring(frontend, n, options.size, packed, [desc, avail, used], (kick, call))?;
            frontend.set_vring_enable(n, true)?;
        }
        // Messages are taken in order: once this one is answered, all of the above is done.
        frontend.get_features()?;
        Ok(())
    }

    /// Connects to another process at `path` after the back-end has died. Rings, requests and data stay as they are.
    pub fn reconnect(&mut self, path: &Path) -> Result<()> {
        let stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        self.frontend = Frontend::from_stream(stream, self.options.queues as u64);
        let (features, _) = negotiate(&mut self.frontend, &self.options)?;
        ensure!(features == self.features, "the features have changed: {features:#x}, not {:#x}", self.features);
        self.set_up()
    }

    /// Reads the device's configuration.
    pub fn config(&mut self) -> Result<Vec<u8>> {
        let buffer = [0; CONFIG_BYTES];
        let flags = VhostUserConfigFlags::WRITABLE;
        Ok(self.frontend.get_config(0, CONFIG_BYTES as u32, flags, &buffer)?.1)
    }

    /// Writes a byte of the device's configuration.
    pub fn set_config(&mut self, at: u32, byte: u8) -> Result<()> {
        Ok(self.frontend.set_config(at, VhostUserConfigFlags::WRITABLE, &[byte])?)
    }

    /// Offers a request and notifies the device if it wants that. Returns its slot, or `None` if there is no room.
    pub fn submit(&mut self, queue: usize, kind: u32, sector: u64, buffer: &Buffer<'_>) -> Option<u16> {
        let (slot, wanted) = self.queues.get_mut(queue)?.submit(kind, sector, buffer)?;
        if wanted {
            // If the counter is full, the back-end has been notified often enough.
            let _ = self.events.get(queue)?.0.write(1);
        }
        Some(slot)
    }

    /// Takes the next completed request of a queue: its slot, and the used length.
    pub fn completed(&mut self, queue: usize) -> Option<(u16, u32)> {
        self.queues.get_mut(queue)?.completed()
    }

    /// The status byte of a completed request.
    #[must_use]
    pub fn status(&self, queue: usize, slot: u16) -> Option<u8> {
        Some(self.queues.get(queue)?.status(slot))
    }

    /// The first bytes of a completed request's data.
    #[must_use]
    pub fn data(&self, queue: usize, slot: u16, len: usize) -> Vec<u8> {
        self.queues.get(queue).map(|queue| queue.data(slot, len)).unwrap_or_default()
    }

    /// Interrupts of a queue since the last call.
    #[must_use]
    pub fn interrupts(&self, queue: usize) -> u64 {
        self.events.get(queue).and_then(|(_, call)| call.read().ok()).unwrap_or(0)
    }

    /// Stops a queue. Returns the back-end's position in the ring.
    pub fn stop(&mut self, queue: usize) -> Result<u16> {
        Ok(self.frontend.get_vring_base(queue)? as u16)
    }

    /// Resumes a stopped queue from a position.
    pub fn resume(&mut self, queue: usize, base: u16) -> Result<()> {
        self.frontend.set_vring_base(queue, base)?;
        self.frontend.set_vring_kick(queue, &self.events.get(queue).context("no such queue")?.0)?;
        self.frontend.get_features()?;
        Ok(())
    }
}
