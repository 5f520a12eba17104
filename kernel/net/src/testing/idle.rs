//! A guest with all queues that a network device can have. They are idle until the guest is told to send.

use alloc::boxed::Box;
use alloc::vec::Vec;

use engine::control::Attachment;
use engine::requests::Requests;
use engine::schedule::GuestWeight;
use memory::GuestMemory;
use virtio::config::MAX_QUEUES;
use virtio::shared::Shared;
use virtio::testing::{BUFFERS, DriverQueue};

use super::guest::SPLIT;
use crate::device::{self, MAX_QUEUE_PAIRS};
use crate::offload::HEADER_BYTES;
use crate::port::Port;

/// Descriptors of each queue.
const SIZE: u16 = 16;
const MEMORY: usize = 0x19_0000;

/// A guest whose driver has set DRIVER_OK, and has done nothing since.
pub struct Idle {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its device.
    pub shared: &'static Shared,
    /// Its port of the switch.
    pub port: Port,
    /// Its address.
    pub mac: [u8; 6],
    queues: Vec<DriverQueue>,
}

impl Idle {
    /// Guest `number`, with split rings.
    #[must_use]
    pub fn new(number: u8) -> Self {
        let mac = [2, 0, 0, 1, 0, number];
        let shared: &Shared = Box::leak(Box::new(Shared::new(device::config(mac, 1500, MAX_QUEUE_PAIRS as u16))));
        let memory = memory::guest::testing::memory(0, MEMORY);
        let queues: Vec<_> = (0..MAX_QUEUES as u16).map(|n| DriverQueue::new(&memory, n, SIZE, SPLIT.ring())).collect();
        for (queue, n) in queues.iter().zip(0..) {
            assert!(shared.configure_queue(n, &queue.config), "the device is not idle");
        }
        assert!(shared.activate(SPLIT.bits()));
        Self { memory, shared, port: Port::new(Box::leak(Box::default())), mac, queues }
    }

    /// Returns its attachment to this slot of an engine, with its queues armed.
    #[must_use]
    pub fn attachment(&self, slot: usize) -> Attachment<Port> {
        Attachment {
            slot,
            number: slot,
            shared: self.shared,
            memory: self.memory.clone(),
            requests: Requests::Notify,
            share: GuestWeight::of_guest(slot),
            config: self.port,
            state: None,
        }
    }

    /// Returns its transmit queues.
    pub fn transmit_queues() -> impl Iterator<Item = u16> {
        (0..MAX_QUEUE_PAIRS as u16).map(|pair| 2 * pair + 1)
    }

    /// Sends a frame of 60 bytes, and notifies the device if the device wants that. Returns whether it did.
    pub fn send(&mut self, queue: u16, to: [u8; 6]) -> bool {
        let frame = [&[0; HEADER_BYTES][..], &to, &self.mac, &[0x88, 0xb5], &[0; 46]].concat();
        self.memory.write(BUFFERS, &frame).expect("a buffer");
        let driver = &mut self.queues[usize::from(queue)];
        while driver.take_used().is_some() {}
        driver.add(&[(BUFFERS, frame.len() as u32, false)]).expect("the queue is idle");
        let notifies = driver.kick_prepare();
        if notifies {
            self.shared.kick(queue);
        }
        notifies
    }
}
