//! A guest with all the queues that a device can have, which lie idle until it is told to send.

use memory::GuestMemory;
use virtio::config::{DeviceConfig, Features, MAX_QUEUES};
use virtio::shared::Shared;
use virtio::testing::{BUFFERS, DriverQueue, device};

use crate::control::Attachment;
use crate::requests::Requests;
use crate::schedule::GuestWeight;

/// Descriptors of each queue.
const SIZE: u16 = 16;
const MEMORY: usize = 0x19_0000;

/// A guest whose driver has come as far as DRIVER_OK, and then done nothing.
pub struct Idle {
    pub slot: usize,
    memory: GuestMemory,
    shared: &'static Shared,
    queues: Vec<DriverQueue>,
}

impl Idle {
    /// At a slot.
    pub fn new(slot: usize, features: Features) -> Self {
        let config = DeviceConfig { queues: MAX_QUEUES as u16, ..device() };
        let shared: &Shared = Box::leak(Box::new(Shared::new(config)));
        let memory = memory::guest::testing::memory(0, MEMORY);
        let queues: Vec<_> = (0..MAX_QUEUES as u16).map(|n| DriverQueue::new(&memory, n, SIZE, features)).collect();
        for (queue, n) in queues.iter().zip(0..) {
            assert!(shared.configure_queue(n, &queue.config), "the device is not idle");
        }
        assert!(shared.activate(features.bits()));
        Self { slot, memory, shared, queues }
    }

    /// What attaches it to its slot, with its queues armed.
    pub fn attachment(&self) -> Attachment<()> {
        Attachment {
            slot: self.slot,
            number: self.slot,
            shared: self.shared,
            memory: self.memory.clone(),
            requests: Requests::Notify,
            share: GuestWeight::of_guest(self.slot),
            config: (),
            state: None,
        }
    }

    /// Its queues to transmit by.
    pub fn transmit_queues() -> impl Iterator<Item = u16> {
        (1..MAX_QUEUES as u16).step_by(2)
    }

    /// Sends a message of 60 bytes, and notifies the device if it wants that: whether it did.
    pub fn send(&mut self, queue: u16, to: usize) -> bool {
        let mut message = [0; 60];
        message[..2].copy_from_slice(&[to as u8, self.slot as u8]);
        self.memory.write(BUFFERS, &message).expect("a buffer");
        let driver = &mut self.queues[usize::from(queue)];
        while driver.take_used().is_some() {}
        driver.add(&[(BUFFERS, message.len() as u32, false)]).expect("the queue is idle");
        let notifies = driver.kick_prepare();
        if notifies {
            self.shared.kick(queue);
        }
        notifies
    }
}
