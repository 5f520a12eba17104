//! A guest with a network device, for tests here and in other crates.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use engine::control::Attachment;
use engine::requests::Requests;
use engine::schedule::GuestWeight;
use memory::GuestMemory;
use virtio::shared::Shared;
use virtio::testing::{BUFFER_STRIDE, BUFFERS, Buffer, DriverQueue, MEMORY, set_up_interrupts};

use crate::counters::PortCounters;
use crate::device;
use crate::features::Features;
use crate::offload::HEADER_BYTES;
use crate::policy::Policy;
use crate::port::Port;

/// The broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Every feature, on split rings.
pub const SPLIT: Features = Features::all().difference(Features::RING_PACKED);

/// A guest with a virtio-net device: receive queue 0, transmit queue 1, each with its own MSI-X entry.
pub struct Guest {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its device.
    pub shared: &'static Shared,
    /// Its port of the switch.
    pub port: Port,
    /// Its address.
    pub mac: [u8; 6],
    /// Receive queue.
    pub rx: DriverQueue,
    /// Transmit queue.
    pub tx: DriverQueue,
    features: Features,
    rx_buffers: Vec<Vec<Buffer>>,
    next_rx: u64,
    next_tx: u64,
}

impl Guest {
    /// Makes a guest whose driver has set DRIVER_OK. `number` determines its MAC address and its vectors.
    #[must_use]
    pub fn new(number: u8, features: Features, size: u16, mtu: u16) -> Self {
        Self::with_rules(number, features, size, mtu, None)
    }

    /// Makes a guest whose port has rules.
    #[must_use]
    pub fn with_rules(number: u8, features: Features, size: u16, mtu: u16, policy: Option<&'static Policy>) -> Self {
        Self::behind(number, features, size, mtu, policy, None)
    }

    /// Makes a guest whose port is pinned to an uplink.
    #[must_use]
    pub fn behind(
        number: u8,
        features: Features,
        size: u16,
        mtu: u16,
        policy: Option<&'static Policy>,
        uplink: Option<u8>,
    ) -> Self {
        let mac = [2, 0, 0, 0, 0, number];
        let shared = Box::leak(Box::new(Shared::new(device::config(mac, mtu, 1))));
        let counters = Box::leak(Box::default());
        let memory = memory::guest::testing::memory(0, MEMORY);
        let mut guest = Self {
            rx: DriverQueue::new(&memory, 0, size, features.ring()),
            tx: DriverQueue::new(&memory, 1, size, features.ring()),
            memory,
            shared,
            port: Port { policy, uplink, counters },
            mac,
            features,
            rx_buffers: vec![Vec::new(); usize::from(size)],
            next_rx: 0,
            next_tx: 0,
        };
        guest.start();
        guest
    }

    /// Returns its attachment to this slot of an engine, with its queues polled.
    #[must_use]
    pub fn attachment(&self, slot: usize) -> Attachment<Port> {
        Attachment {
            slot,
            number: slot,
            shared: self.shared,
            memory: self.memory.clone(),
            requests: Requests::Poll,
            share: GuestWeight::of_guest(slot),
            config: self.port,
            state: None,
        }
    }

    /// Returns its frame counters.
    #[must_use]
    pub fn counters(&self) -> &'static PortCounters {
        self.port.counters
    }

    /// Returns all counters of its device and its frames, by name.
    #[must_use]
    pub fn counted(&self) -> Vec<(&'static str, u64)> {
        self.shared.counters().iter().chain(self.port.counters.iter()).collect()
    }

    /// Sets up queues and interrupts, and sets DRIVER_OK.
    pub fn start(&mut self) {
        let size = self.rx.config.size;
        self.rx = DriverQueue::new(&self.memory, 0, size, self.features.ring());
        self.tx = DriverQueue::new(&self.memory, 1, size, self.features.ring());
        self.rx_buffers = vec![Vec::new(); usize::from(size)];
        set_up_interrupts(&self.shared.msix, (0..3).map(|entry| self.vector(entry)));
        set_up_interrupts(&self.shared.msix, (0..3).map(|entry| self.vector(entry)));
        assert!(self.shared.accepts(self.features.bits()), "features that were not offered");
        for (index, queue) in [(0, &self.rx), (1, &self.tx)] {
            assert!(self.shared.configure_queue(index, &queue.config), "the device is not idle");
        }
        self.shared.set_config_vector(0);
        assert!(self.shared.activate(self.features.bits()));
    }

    /// Resets one queue, and sets it up again with `size` descriptors. The driver forgets what it had offered. `turn`
    /// must run a turn of the engine.
    pub fn resize(&mut self, transmit: bool, size: u16, mut turn: impl FnMut()) {
        let index = u16::from(transmit);
        assert!(self.shared.reset_queue(index), "the queue is in use");
        while !self.shared.queue_reset_done(index) {
            turn();
        }
        let queue = DriverQueue::new(&self.memory, index, size, self.features.ring());
        assert!(self.shared.configure_queue(index, &queue.config), "the queue is out of use");
        if transmit {
            self.tx = queue;
        } else {
            self.rx = queue;
            self.rx_buffers = vec![Vec::new(); usize::from(size)];
        }
        turn();
    }

    /// Returns the vector of an MSI-X entry: 0 configuration, 1 receive, 2 transmit.
    #[must_use]
    pub fn vector(&self, entry: u8) -> u8 {
        (0x40 + 16 * u16::from(self.mac[5]) % 0x80) as u8 + entry
    }

    /// Posts up to `count` receive buffers of pieces of the given lengths. Returns how many there was room for.
    pub fn post(&mut self, count: usize, pieces: &[u32]) -> usize {
        for posted in 0..count {
            let mut gpa = BUFFERS + self.next_rx % 256 * BUFFER_STRIDE;
            let mut buffers = Vec::new();
            for &len in pieces {
                buffers.push((gpa, len, true));
                gpa += u64::from(len);
            }
            let Some(head) = self.rx.add(&buffers) else { return posted };
            self.rx_buffers[usize::from(head)] = buffers;
            self.next_rx += 1;
        }
        count
    }

    /// Sends a frame with an empty header. Header and frame are cut into buffers at `cuts` (offsets from the start of
    /// the header). Returns false if the queue is full.
    pub fn send(&mut self, frame: &[u8], cuts: &[usize]) -> bool {
        self.send_with(&[0; HEADER_BYTES], frame, cuts)
    }

    /// [`Guest::send`] with a header.
    pub fn send_with(&mut self, header: &[u8], frame: &[u8], cuts: &[usize]) -> bool {
        while self.tx.take_used().is_some() {}
        let bytes = [header, frame].concat();
        let mut ends: Vec<usize> = cuts.iter().copied().filter(|&c| c > 0 && c < bytes.len()).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        ends.dedup();
        if self.tx.free() < ends.len() {
            return false;
        }
        let gpa = BUFFERS + 0x10_0000 + self.next_tx % 256 * BUFFER_STRIDE;
        self.memory.write(gpa, &bytes).expect("a buffer");
        let mut start = 0;
        let mut buffers = Vec::new();
        for end in ends {
            buffers.push((gpa + start as u64, (end - start) as u32, false));
            start = end;
        }
        self.next_tx += 1;
        self.tx.add(&buffers).is_some()
    }

    /// Takes a received frame, joined from its buffers, without its header. The header must be empty.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let (header, bytes) = self.receive_with()?;
        assert!(header.iter().all(|&b| b == 0), "something of the sender's header came through: {header:?}");
        Some(bytes)
    }

    /// [`Guest::receive`], but also returns the part of the header that is about offloads.
    pub fn receive_with(&mut self) -> Option<([u8; 10], Vec<u8>)> {
        let mut bytes = self.take_buffer()?;
        let mut taken = 1;
        // A buffer may be shorter than the header.
        while bytes.len() < HEADER_BYTES {
            bytes.extend(self.take_buffer().expect("a frame has a header"));
            taken += 1;
        }
        let header: Vec<u8> = bytes.drain(..HEADER_BYTES).collect();
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        assert!(buffers == 1 || self.features.contains(Features::NET_MRG_RXBUF));
        for _ in taken..buffers {
            bytes.extend(self.take_buffer().expect("num_buffers buffers are used together"));
        }
        Some((*header.first_chunk()?, bytes))
    }

    fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let (head, len) = self.rx.take_used()?;
        let mut left = len as usize;
        let mut bytes = Vec::new();
        for (gpa, len, _) in core::mem::take(&mut self.rx_buffers[usize::from(head)]) {
            let mut piece = vec![0; left.min(len as usize)];
            self.memory.read(gpa, &mut piece).expect("a buffer");
            left -= piece.len();
            bytes.extend(piece);
        }
        assert_eq!(left, 0, "more written than there was room");
        Some(bytes)
    }

    /// Makes a frame of `len` bytes from this guest to `to`. `tag` and the position determine its payload.
    #[must_use]
    pub fn frame(&self, to: [u8; 6], len: usize, tag: u8) -> Vec<u8> {
        let mut frame = [&to[..], &self.mac, &[0x88, 0xb5]].concat();
        frame.extend((frame.len()..len).map(|i| (i as u8).wrapping_mul(31) ^ tag));
        frame
    }
}
