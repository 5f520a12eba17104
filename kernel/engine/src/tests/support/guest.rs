//! A guest whose device sends and receives messages.

use memory::GuestMemory;
use virtio::config::Features;
use virtio::shared::Shared;
use virtio::testing::{BUFFER_STRIDE, BUFFERS, DriverQueue, MEMORY, device, set_up_interrupts};

use crate::control::Attachment;
use crate::requests::Requests;
use crate::schedule::GuestWeight;

/// The queue that a guest receives by.
pub const RX: u16 = 0;
/// The queue that a guest transmits by.
pub const TX: u16 = 1;

/// A guest with a device of two queues, each with its own MSI-X entry.
pub struct Guest {
    pub memory: GuestMemory,
    pub shared: &'static Shared,
    /// The slot of its device.
    pub slot: usize,
    pub rx: DriverQueue,
    pub tx: DriverQueue,
    features: Features,
    /// Where each buffer is that was posted, by head.
    posted: Vec<u64>,
    next_rx: u64,
    next_tx: u64,
}

impl Guest {
    /// A guest whose driver has come as far as DRIVER_OK, with queues of `size` descriptors.
    pub fn new(slot: usize, features: Features, size: u16) -> Self {
        let memory = memory::guest::testing::memory(0, MEMORY);
        let mut guest = Self {
            rx: DriverQueue::new(&memory, RX, size, features),
            tx: DriverQueue::new(&memory, TX, size, features),
            memory,
            shared: Box::leak(Box::new(Shared::new(device()))),
            slot,
            features,
            posted: Vec::new(),
            next_rx: 0,
            next_tx: 0,
        };
        guest.start();
        guest
    }

    /// What attaches it to an engine's slot, under the same number, with its queues polled.
    pub fn attachment(&self, slot: usize) -> Attachment<()> {
        self.attachment_with(slot, ())
    }

    /// The same, with what its back-end has to know of it.
    pub fn attachment_with<K>(&self, slot: usize, config: K) -> Attachment<K> {
        Attachment {
            slot,
            number: slot,
            shared: self.shared,
            memory: self.memory.clone(),
            requests: Requests::Poll,
            share: GuestWeight::of_guest(slot),
            config,
            state: None,
        }
    }

    /// Sets queues and interrupts up and says DRIVER_OK.
    pub fn start(&mut self) {
        let size = self.rx.config.size;
        self.rx = DriverQueue::new(&self.memory, RX, size, self.features);
        self.tx = DriverQueue::new(&self.memory, TX, size, self.features);
        self.posted = vec![0; usize::from(size)];
        set_up_interrupts(&self.shared.msix, (0..3).map(|entry| self.vector(entry)));
        for (index, queue) in [(RX, &self.rx), (TX, &self.tx)] {
            assert!(self.shared.configure_queue(index, &queue.config), "the device is not idle");
        }
        self.shared.set_config_vector(0);
        assert!(self.shared.activate(self.features.bits()));
    }

    /// Resets one queue, of which the driver forgets what it had offered, and sets it up anew with so many descriptors; the
    /// engine does its part in `turn`.
    pub fn resize(&mut self, queue: u16, size: u16, mut turn: impl FnMut()) {
        assert!(self.shared.reset_queue(queue), "the queue is in use");
        while !self.shared.queue_reset_done(queue) {
            turn();
        }
        let driver = DriverQueue::new(&self.memory, queue, size, self.features);
        assert!(self.shared.configure_queue(queue, &driver.config), "the queue is out of use");
        if queue == TX {
            self.tx = driver;
        } else {
            (self.rx, self.posted) = (driver, vec![0; usize::from(size)]);
        }
        turn();
    }

    /// The vector of an MSI-X entry: 0 configuration, 1 receive, 2 transmit.
    pub fn vector(&self, entry: u8) -> u8 {
        0x40 + 16 * (self.slot % 8) as u8 + entry
    }

    /// Posts up to `count` receive buffers of `len` bytes: how many had room.
    pub fn post(&mut self, count: usize, len: u32) -> usize {
        for posted in 0..count {
            let gpa = BUFFERS + self.next_rx % 256 * BUFFER_STRIDE;
            let Some(head) = self.rx.add(&[(gpa, len, true)]) else { return posted };
            self.posted[usize::from(head)] = gpa;
            self.next_rx += 1;
        }
        count
    }

    /// Sends a message. False: the queue is full.
    pub fn send(&mut self, message: &[u8]) -> bool {
        while self.tx.take_used().is_some() {}
        let gpa = BUFFERS + 0x10_0000 + self.next_tx % 256 * BUFFER_STRIDE;
        self.memory.write(gpa, message).expect("a buffer");
        self.next_tx += 1;
        self.tx.add(&[(gpa, message.len() as u32, false)]).is_some()
    }

    /// Takes a message that has arrived, in one buffer.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let (head, len) = self.rx.take_used()?;
        let mut message = vec![0; len as usize];
        self.memory.read(self.posted[usize::from(head)], &mut message).expect("a buffer");
        Some(message)
    }

    /// A message of `len` bytes, two or more, to the device at a slot; `tag` and the position make what it says.
    pub fn message(&self, to: usize, len: usize, tag: u8) -> Vec<u8> {
        let mut message = vec![to as u8, self.slot as u8];
        message.extend((message.len()..len).map(|i| (i as u8).wrapping_mul(31) ^ tag));
        message
    }
}
