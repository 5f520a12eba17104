//! A guest with all the queues that a network device can have, which lie idle until it is told to send.

use super::alloc::boxed::Box;
use super::alloc::vec::Vec;
use super::{BUFFERS, DriverQueue, SPLIT};
use crate::net::{self, HEADER_BYTES};
use crate::shared::{MAX_QUEUE_PAIRS, MAX_QUEUES, Shared};
use memory::GuestMemory;

/// Descriptors of each queue.
const SIZE: u16 = 16;
const MEMORY: usize = 0x19_0000;

/// A guest whose driver has come as far as DRIVER_OK, and then done nothing.
pub struct Idle {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its device.
    pub shared: &'static Shared,
    /// Its address.
    pub mac: [u8; 6],
    queues: Vec<DriverQueue>,
}

impl Idle {
    /// Guest `number`, with split rings.
    #[must_use]
    pub fn new(number: u8) -> Self {
        let mac = [2, 0, 0, 1, 0, number];
        let shared: &Shared = Box::leak(Box::new(Shared::new(net::config(mac, 1500, MAX_QUEUE_PAIRS as u16))));
        let memory = memory::guest::testing::memory(0, MEMORY);
        let queues: Vec<_> = (0..MAX_QUEUES as u16).map(|n| DriverQueue::new(&memory, n, SIZE, SPLIT)).collect();
        for (queue, n) in queues.iter().zip(0..) {
            assert!(shared.configure_queue(n, &queue.config), "the device is not idle");
        }
        assert!(shared.activate(SPLIT.bits()));
        Self { memory, shared, mac, queues }
    }

    /// Its queues to transmit by.
    pub fn transmit_queues() -> impl Iterator<Item = u16> {
        (0..MAX_QUEUE_PAIRS as u16).map(|pair| 2 * pair + 1)
    }

    /// Sends a frame of 60 bytes, and notifies the device if it wants that: whether it did.
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
