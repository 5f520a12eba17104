//! A driver's half of virtio-net, written the way Linux's driver behaves: for tests here and in the crates above.

extern crate alloc;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use memory::GuestMemory;

use crate::control::Attachment;
use crate::msix::Interrupt;
use crate::net;
use crate::policy::Policy;
use crate::queue::either;
use crate::requests::Requests;
use crate::schedule::Share;
use crate::shared::{Deliver, DeviceConfig, Features, QueueConfig, Shared};
use packed::Packed;
use split::Split;

pub mod forward;
mod idle;
mod packed;
mod split;

pub use idle::Idle;

/// Every feature, on split rings.
pub const SPLIT: Features = Features::all().difference(Features::RING_PACKED);

/// Where a test guest keeps its rings: one of these areas for each queue.
pub const RING_AREA: u64 = 0x8000;
/// Offset of the available ring in it, or of the driver's event suppression structure.
pub const AVAIL: u64 = 0x4000;
/// Offset of the used ring in it, or of the device's event suppression structure.
pub const USED: u64 = 0x5000;
/// Where its indirect tables are: 1 KiB for each head or id.
pub const TABLES: u64 = 0x2_0000;
const TABLE_BYTES: u64 = 0x400;
/// Where its buffers are.
pub const BUFFERS: u64 = 0x18_0000;
/// Bytes between two buffers.
pub const BUFFER_STRIDE: u64 = 0x1000;
/// Bytes of a test guest's memory.
pub const MEMORY: usize = 0x40_0000;

/// A buffer of a request: address, length, and whether the device writes it.
pub type Buffer = (u64, u32, bool);

/// The driver's half of a virtqueue, of the form that the features say.
pub struct DriverQueue {
    /// Its configuration.
    pub config: QueueConfig,
    ring: Ring,
    /// With IN_ORDER: what is offered and not taken back, in the order in which it was offered.
    order: Option<VecDeque<u16>>,
}

enum Ring {
    Split(Split),
    Packed(Packed),
}

impl DriverQueue {
    /// A queue number `index` of `size` descriptors in its area of the memory.
    #[must_use]
    pub fn new(memory: &GuestMemory, index: u16, size: u16, features: Features) -> Self {
        let area = u64::from(index) * RING_AREA;
        let config =
            QueueConfig { size, desc: area, avail: area + AVAIL, used: area + USED, vector: index + 1, enabled: true };
        memory.zero(area, RING_AREA).expect("the test guest's memory");
        let tables = TABLES + u64::from(index) * 0x10_0000 / 2;
        let ring = if features.contains(Features::RING_PACKED) {
            Ring::Packed(Packed::new(memory.clone(), config, features, tables))
        } else {
            Ring::Split(Split::new(memory.clone(), config, features, tables))
        };
        Self { config, ring, order: features.contains(Features::IN_ORDER).then(VecDeque::new) }
    }

    /// Free descriptors.
    #[must_use]
    pub fn free(&self) -> usize {
        either!(&self.ring, ring => ring.free())
    }

    /// Offers a request; its head or id, or None if there are too few descriptors. Several buffers go into an indirect
    /// table if that was negotiated.
    pub fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let id = either!(&mut self.ring, ring => ring.add(buffers))?;
        if let Some(order) = &mut self.order {
            order.push_back(id);
        }
        Some(id)
    }

    /// Of a packed ring: where the descriptor is that is `ahead` of the next one to offer, by fewer than the ring has, and
    /// AVAIL and USED of one that is offered there. Of a split ring: nothing.
    #[must_use]
    pub fn to_offer(&self, ahead: u16) -> (u64, u16) {
        match &self.ring {
            Ring::Split(_) => (0, 0),
            Ring::Packed(ring) => ring.to_offer(ahead),
        }
    }

    /// Whether the device has to be notified of what was added since the last time this was asked.
    pub fn kick_prepare(&mut self) -> bool {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        either!(&mut self.ring, ring => ring.kick_prepare())
    }

    /// How many requests the device has published as used, since the queue began.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        either!(&self.ring, ring => ring.used_index())
    }

    /// Whether there is a used request to take.
    #[must_use]
    pub fn has_used(&self) -> bool {
        either!(&self.ring, ring => ring.has_used())
    }

    /// Takes the next used request: its head or id, and how many bytes were written.
    ///
    /// # Panics
    /// If the device has broken the rules of the ring.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        let (id, len) = either!(&mut self.ring, ring => ring.take_used())?;
        if let Some(order) = &mut self.order {
            assert_eq!(order.pop_front(), Some(id), "buffers come back in order");
        }
        Some((id, len))
    }

    /// Asks for an interrupt at the next used request.
    pub fn enable_interrupts(&mut self) {
        either!(&mut self.ring, ring => ring.enable_interrupts());
    }

    /// Asks for none.
    pub fn disable_interrupts(&mut self) {
        either!(&mut self.ring, ring => ring.disable_interrupts());
    }

    /// Asks for an interrupt when the used index passes `event`; with EVENT_IDX. In a packed ring it counts descriptors.
    pub fn write_used_event(&self, event: u16) {
        either!(&self.ring, ring => ring.write_used_event(event));
    }
}

/// A guest with a virtio-net device: receive queue 0, transmit queue 1, each with its own MSI-X entry.
pub struct Guest {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its device.
    pub shared: &'static Shared,
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
    /// A guest whose driver has come as far as DRIVER_OK. `number` makes its MAC address and its vectors.
    #[must_use]
    pub fn new(number: u8, features: Features, size: u16, mtu: u16) -> Self {
        Self::with_rules(number, features, size, mtu, None)
    }

    /// The same, whose port has rules.
    #[must_use]
    pub fn with_rules(number: u8, features: Features, size: u16, mtu: u16, policy: Option<&'static Policy>) -> Self {
        Self::behind(number, features, size, mtu, policy, None)
    }

    /// The same, whose port is kept to an uplink.
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
        let device = DeviceConfig { policy, uplink, ..net::config(mac, mtu, 1) };
        let shared = alloc::boxed::Box::leak(alloc::boxed::Box::new(Shared::new(device)));
        let memory = memory::guest::testing::memory(0, MEMORY);
        let mut guest = Self {
            rx: DriverQueue::new(&memory, 0, size, features),
            tx: DriverQueue::new(&memory, 1, size, features),
            memory,
            shared,
            mac,
            features,
            rx_buffers: vec![Vec::new(); usize::from(size)],
            next_rx: 0,
            next_tx: 0,
        };
        guest.start();
        guest
    }

    /// What attaches it to an engine's port, under the same number, with its queues polled.
    #[must_use]
    pub fn attachment(&self, port: usize) -> Attachment {
        Attachment {
            port,
            number: port,
            shared: self.shared,
            memory: self.memory.clone(),
            requests: Requests::Poll,
            share: Share::of_guest(port),
            state: None,
        }
    }

    /// Sets queues and interrupts up and says DRIVER_OK.
    pub fn start(&mut self) {
        let size = self.rx.config.size;
        self.rx = DriverQueue::new(&self.memory, 0, size, self.features);
        self.tx = DriverQueue::new(&self.memory, 1, size, self.features);
        self.rx_buffers = vec![Vec::new(); usize::from(size)];
        let msix = &self.shared.msix;
        msix.set_function_control(true, true);
        for entry in 0..3u64 {
            msix.write(16 * entry, 8, 0xfee0_0000);
            msix.write(16 * entry + 8, 8, 0x40 + 16 * u64::from(self.mac[5]) % 0x80 + entry);
        }
        msix.set_function_control(true, false);
        assert!(self.shared.accepts(self.features.bits()), "features that were not offered");
        for (index, queue) in [(0, &self.rx), (1, &self.tx)] {
            assert!(self.shared.configure_queue(index, &queue.config), "the device is not idle");
        }
        self.shared.set_config_vector(0);
        assert!(self.shared.activate(self.features.bits()));
    }

    /// Resets one queue, of which the driver forgets what it had offered, and sets it up anew with so many descriptors; the
    /// engine does its part in `turn`.
    pub fn resize(&mut self, transmit: bool, size: u16, mut turn: impl FnMut()) {
        let index = u16::from(transmit);
        assert!(self.shared.reset_queue(index), "the queue is in use");
        while !self.shared.queue_reset_done(index) {
            turn();
        }
        let queue = DriverQueue::new(&self.memory, index, size, self.features);
        assert!(self.shared.configure_queue(index, &queue.config), "the queue is out of use");
        if transmit {
            self.tx = queue;
        } else {
            self.rx = queue;
            self.rx_buffers = vec![Vec::new(); usize::from(size)];
        }
        turn();
    }

    /// The vector of an MSI-X entry: 0 configuration, 1 receive, 2 transmit.
    #[must_use]
    pub fn vector(&self, entry: u8) -> u8 {
        (0x40 + 16 * u16::from(self.mac[5]) % 0x80) as u8 + entry
    }

    /// Posts up to `count` receive buffers made of pieces of the given lengths; how many had room.
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

    /// Sends a frame with an empty header, its bytes cut at `cuts` (offsets counted from the header's start). False:
    /// the queue is full.
    pub fn send(&mut self, frame: &[u8], cuts: &[usize]) -> bool {
        self.send_with(&[0; net::HEADER_BYTES], frame, cuts)
    }

    /// As [`Guest::send`], with a header.
    pub fn send_with(&mut self, header: &[u8], frame: &[u8], cuts: &[usize]) -> bool {
        while self.tx.take_used().is_some() {}
        let gpa = BUFFERS + 0x10_0000 + self.next_tx % 256 * BUFFER_STRIDE;
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(frame);
        self.memory.write(gpa, &bytes).expect("a buffer");
        let mut ends: Vec<usize> = cuts.iter().copied().filter(|&c| c > 0 && c < bytes.len()).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        ends.dedup();
        let mut start = 0;
        let mut buffers = Vec::new();
        for end in ends {
            buffers.push((gpa + start as u64, (end - start) as u32, false));
            start = end;
        }
        self.next_tx += 1;
        self.tx.add(&buffers).is_some()
    }

    /// Takes a frame that has arrived, put together from its buffers; without its header, in which nothing stands.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let (header, bytes) = self.receive_with()?;
        assert!(header.iter().all(|&b| b == 0), "something of the sender's header came through: {header:?}");
        Some(bytes)
    }

    /// As [`Guest::receive`], with the header's part that is about offloads.
    pub fn receive_with(&mut self) -> Option<([u8; 10], Vec<u8>)> {
        let mut bytes = self.take_buffer()?;
        let mut taken = 1;
        // A buffer may be shorter than the header.
        while bytes.len() < net::HEADER_BYTES {
            bytes.extend(self.take_buffer().expect("a frame has a header"));
            taken += 1;
        }
        let header: Vec<u8> = bytes.drain(..net::HEADER_BYTES).collect();
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

    /// A frame of `len` bytes from this guest to `to`; `tag` and the position make its payload.
    #[must_use]
    pub fn frame(&self, to: [u8; 6], len: usize, tag: u8) -> Vec<u8> {
        let mut frame = [&to[..], &self.mac, &[0x88, 0xb5]].concat();
        frame.extend((frame.len()..len).map(|i| (i as u8).wrapping_mul(31) ^ tag));
        frame
    }
}

/// Everybody's address.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Remembers interrupts in place of sending them.
#[derive(Default)]
pub struct Recorder(pub RefCell<Vec<(usize, Interrupt)>>);

impl Recorder {
    /// Takes what was delivered since the last time: device and vector.
    pub fn take(&self) -> Vec<(usize, u8)> {
        self.0.take().into_iter().map(|(device, interrupt)| (device, interrupt.vector)).collect()
    }
}

impl Deliver for Recorder {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        self.0.borrow_mut().push((device, interrupt));
        true
    }
}
