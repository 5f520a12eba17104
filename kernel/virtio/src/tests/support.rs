//! A queue and the driver's half of it, over a memory of their own.

#![allow(unsafe_code, reason = "a queue needs a memory that lives as long")]

use core::sync::atomic::{Ordering, fence};

use memory::GuestMemory;

use crate::chain::{Segment, Segments};
use crate::config::{Features, MAX_QUEUE_SIZE};
use crate::fault::Fault;
use crate::queue::{Queue, QueueState, Token, UsedNotification};
use crate::testing::{DriverQueue, MEMORY};

/// A chain's buffers, each with whether the device writes it.
pub type Buffers = Vec<(Segment, bool)>;

/// Both halves of a queue.
pub struct Rig {
    pub memory: GuestMemory,
    pub driver: DriverQueue,
    pub queue: Queue,
    pub segments: Segments,
}

/// A queue of `size` descriptors on which nothing was offered.
pub fn rig(size: u16, features: Features) -> Rig {
    let memory = memory::guest::testing::memory(0, MEMORY);
    let driver = DriverQueue::new(&memory, 0, size, features);
    let state = QueueState::start(driver.config, features);
    // SAFETY: a test's memory lives for ever.
    let queue = unsafe { Queue::new(&memory, 0, 1, features, MAX_QUEUE_SIZE, &state).unwrap() };
    Rig { memory, driver, queue, segments: Segments::new() }
}

impl Rig {
    /// Takes and completes all requests. Returns how many there were.
    pub fn serve(&mut self) -> u16 {
        let mut n = 0;
        self.segments.clear();
        while let Some(request) = self.queue.pop(&self.memory, &mut self.segments).unwrap() {
            assert!(self.queue.complete(&self.memory, request.token, 0).unwrap());
            self.segments.clear();
            n += 1;
        }
        n
    }

    /// Takes the next request. Returns its token and its buffers.
    pub fn take(&mut self) -> Result<Option<(Token, Buffers)>, Fault> {
        self.segments.clear();
        let Some(request) = self.queue.pop(&self.memory, &mut self.segments)? else { return Ok(None) };
        let chain = request.chain;
        let readable = chain.readable(&self.segments).iter().map(|s| (*s, false));
        let writable = chain.writable(&self.segments).iter().map(|s| (*s, true));
        Ok(Some((request.token, readable.chain(writable).collect())))
    }

    /// Publishes the completions. Returns whether the driver wants an interrupt.
    pub fn publish(&mut self) -> UsedNotification {
        self.queue.publish();
        fence(Ordering::SeqCst);
        self.queue.used_notification(&self.memory).unwrap()
    }
}
