//! Connects a port to a back-end and sets up its queues.

#![allow(unsafe_code, reason = "hands the queues their parts of the memory")]

use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::area::{Area, area_bytes};
use crate::memory::{Memory, Pages};
use crate::ring::{Receive, RingOptions, Transmit};
use crate::ring_messages::set_ring;

/// Feature bits that a driver may want, by their names in the specification.
pub mod features {
    /// Checksums may be left to the device.
    pub const CSUM: u64 = 1 << 0;
    /// Frames with partial checksums are taken.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// TSO frames are taken.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// TSO frames are taken, over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// TSO frames may be sent.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// TSO frames may be sent, over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// A frame may span several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Event indices.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers come back in the order in which they were offered.
    pub const IN_ORDER: u64 = 1 << 35;

    /// The names of the bits that are set, of those listed here.
    #[must_use]
    pub fn names(features: u64) -> Vec<&'static str> {
        [
            (MRG_RXBUF, "MRG_RXBUF"),
            (EVENT_IDX, "EVENT_IDX"),
            (INDIRECT_DESC, "INDIRECT_DESC"),
            (CSUM, "CSUM"),
            (GUEST_CSUM, "GUEST_CSUM"),
            (HOST_TSO4, "HOST_TSO4"),
            (HOST_TSO6, "HOST_TSO6"),
            (GUEST_TSO4, "GUEST_TSO4"),
            (GUEST_TSO6, "GUEST_TSO6"),
            (VERSION_1, "VERSION_1"),
            (RING_PACKED, "RING_PACKED"),
            (IN_ORDER, "IN_ORDER"),
        ]
        .into_iter()
        .filter_map(|(bit, name)| (features & bit != 0).then_some(name))
        .collect()
    }
}

/// The options of a port.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Features to accept if they are offered.
    pub features: u64,
    /// Descriptors of a queue, a power of two.
    pub size: u16,
    /// The pages of its memory.
    pub pages: Pages,
}

impl Default for Options {
    fn default() -> Self {
        let rings = features::MRG_RXBUF | features::INDIRECT_DESC | features::EVENT_IDX | features::VERSION_1;
        Self { features: rings, size: 256, pages: Pages::Small }
    }
}

/// A port that is set up: one pair of queues.
pub struct Port {
    /// Frames to the back-end.
    pub tx: Transmit,
    /// Frames from the back-end.
    pub rx: Receive,
    /// What was negotiated.
    pub features: u64,
    kicks: [EventFd; 2],
    calls: [EventFd; 2],
    frontend: Frontend,
    memory: Memory,
}

/// A port's connection and memory. Keep it while its queues are used separately.
pub struct Connection {
    _events: ([EventFd; 2], [EventFd; 2]),
    _frontend: Frontend,
    _memory: Memory,
}

/// The guest-physical address of the memory, which descriptors use.
const GUEST: u64 = 0x10_0000;

impl Port {
    /// Connects to a back-end that listens at `path`, and starts both queues.
    pub fn connect(path: &Path, options: &Options) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        Self::start(stream, options).with_context(|| format!("cannot set up the port at {}", path.display()))
    }

    /// Sets a port up over a connection.
    pub fn start(stream: UnixStream, options: &Options) -> Result<Self> {
        let mut frontend = Frontend::from_stream(stream, 2);
        frontend.set_owner()?;
        let offered = frontend.get_features()?;
        let protocol = offered & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let accepted = offered & options.features;
        ensure!(accepted & features::VERSION_1 != 0, "VERSION_1 is not offered: {offered:#x}");
        if protocol != 0 {
            let offered = frontend.get_protocol_features()?;
            frontend.set_protocol_features(offered & VhostUserProtocolFeatures::REPLY_ACK)?;
        }
        frontend.set_features(accepted | protocol)?;

        let half = area_bytes(options.size).next_multiple_of(4096);
        let memory = Memory::new((2 * half).next_multiple_of(2 << 20), options.pages)?;
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: memory.len() as u64,
            userspace_addr: memory.start() as u64,
            mmap_offset: 0,
            mmap_handle: memory.file().as_raw_fd(),
        }])?;
        // SAFETY: two parts of the memory that nothing else uses, which lives as long as the queues do.
        let areas = [0, half].map(|offset| unsafe {
            Area::new(memory.start().wrapping_add(offset), GUEST + offset as u64, options.size)
        });
        let packed = accepted & features::RING_PACKED != 0;
        let form = RingOptions { event_idx: accepted & features::EVENT_IDX != 0, packed };
        let [rx, tx] = areas;
        let (rx, tx) = (Receive::new(rx, form), Transmit::new(tx, form));

        let event = || EventFd::new(EFD_NONBLOCK);
        let (kicks, calls) = ([event()?, event()?], [event()?, event()?]);
        for (n, area) in areas.iter().enumerate() {
            let user = memory.start() as u64 + (n * half) as u64;
            let [desc, avail, used] = area.rings().map(|offset| user + offset as u64);
            set_ring(&mut frontend, n, options.size, packed, [desc, avail, used], (&kicks[n], &calls[n]))?;
        }
        for (n, kick) in kicks.iter().enumerate() {
            if protocol != 0 {
                frontend.set_vring_enable(n, true)?;
            }
            kick.write(1)?;
        }
        // Messages are taken in order: once this one is answered, all of the above is done.
        frontend.get_features()?;
        Ok(Self { tx, rx, features: accepted, kicks, calls, frontend, memory })
    }

    /// Returns its queues, and the parts to keep while they are used.
    #[must_use]
    pub fn into_parts(self) -> (Transmit, Receive, Connection) {
        let Self { tx, rx, kicks, calls, frontend, memory, .. } = self;
        (tx, rx, Connection { _events: (kicks, calls), _frontend: frontend, _memory: memory })
    }

    /// Notifies the receive queue (0) or the transmit queue (1).
    pub fn kick(&self, queue: usize) {
        if let Some(kick) = self.kicks.get(queue) {
            // If the counter is full, the back-end has been notified often enough.
            let _ = kick.write(1);
        }
    }

    /// Interrupts of a queue since the last call.
    #[must_use]
    pub fn interrupts(&self, queue: usize) -> u64 {
        self.calls.get(queue).and_then(|call| call.read().ok()).unwrap_or(0)
    }

    /// Fills a queue's call eventfd and makes it block its writer. No front-end should do this.
    pub fn block_interrupts(&self, queue: usize) {
        let Some(call) = self.calls.get(queue) else { return };
        let fd = call.as_raw_fd();
        // Empties it: a count that is in it already would block the write below.
        let _ = call.read();
        let _ = call.write(u64::MAX - 1);
        // SAFETY: flags of a file descriptor that is ours.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) & !libc::O_NONBLOCK) };
    }

    /// Stops a queue. Returns the back-end's position in the available ring.
    pub fn stop(&mut self, queue: usize) -> Result<u16> {
        Ok(self.frontend.get_vring_base(queue)? as u16)
    }

    /// Resumes a stopped queue from a position.
    pub fn resume(&mut self, queue: usize, base: u16) -> Result<()> {
        self.frontend.set_vring_base(queue, base)?;
        let kick = self.kicks.get(queue).context("no such queue")?;
        self.frontend.set_vring_kick(queue, kick)?;
        self.frontend.get_features()?;
        Ok(())
    }

    /// Its memory, for tests that damage it.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Copies a frame into the transmit queue. Returns false if there is no room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        match self.tx.send(frame) {
            Some(kick) => {
                if kick {
                    self.kick(1);
                }
                true
            }
            None => false,
        }
    }
}
