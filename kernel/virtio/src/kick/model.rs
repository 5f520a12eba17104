//! A loom model of `kick.rs` itself: every interleaving of a driver's notification with an engine that stops polling.
//! Memory may delay a store until a fence.
//!
//! The ring is reduced to what arming needs: the available index, and the word in which the device asks for
//! notifications. The steps are those of `Queue::arm` and of the driver (virtio 1.3 2.7.13.3).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::{Bits, ring};

impl Bits for AtomicU64 {
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::Release);
    }

    fn take(&self) -> u64 {
        if self.load(Ordering::Relaxed) == 0 { 0 } else { self.swap(0, Ordering::Acquire) }
    }
}

const DEVICE: u64 = 1 << 3;
const QUEUE: u64 = 1 << 1;

#[derive(Default)]
struct Ring {
    avail: AtomicU64,
    armed: AtomicU64,
    device: AtomicU64,
    engine: AtomicU64,
}

impl Ring {
    /// The driver offers a request, and notifies if the device has asked for it.
    fn offer(&self, index: u64, fenced: bool) {
        self.avail.store(index, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        if self.armed.load(Ordering::Relaxed) != 0 {
            ring(&self.device, Some((&self.engine, DEVICE)), QUEUE);
        }
    }
}

/// An engine with one queue.
struct Engine {
    ring: Arc<Ring>,
    seen: u64,
    visits: bool,
}

impl Engine {
    fn new(ring: &Arc<Ring>) -> Self {
        Self { ring: ring.clone(), seen: 0, visits: true }
    }

    /// A turn: takes the doorbell, then visits the queue if it is in the set of visited queues. An empty queue is
    /// armed.
    fn turn(&mut self) {
        if self.ring.engine.take() & DEVICE != 0 && self.ring.device.take() & QUEUE != 0 && !self.visits {
            self.ring.armed.store(0, Ordering::Relaxed);
            self.visits = true;
        }
        if !self.visits {
            return;
        }
        let index = self.ring.avail.load(Ordering::Acquire);
        if index != self.seen {
            self.seen = index;
            return;
        }
        self.ring.armed.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.ring.avail.load(Ordering::Acquire) == self.seen {
            self.visits = false;
        } else {
            self.ring.armed.store(0, Ordering::Relaxed);
        }
    }
}

fn conversation(requests: u64, fenced: bool) {
    loom::model(move || {
        let ring = Arc::new(Ring::default());
        let driver = {
            let ring = ring.clone();
            thread::spawn(move || (1..=requests).for_each(|index| ring.offer(index, fenced)))
        };
        let mut engine = Engine::new(&ring);
        engine.turn();
        engine.turn();
        driver.join().unwrap();
        // Nothing more comes. A request that was offered is found within two turns, or never. One turn may end with the
        // arming of a queue whose doorbell rang too early.
        engine.turn();
        engine.turn();
        assert_eq!(engine.seen, requests, "a request was left behind an armed queue");
    });
}

#[test]
fn no_kick_is_lost_however_arming_and_offering_meet() {
    conversation(1, true);
    conversation(2, true);
}

#[test]
#[should_panic = "left behind"]
fn without_the_drivers_fence_the_model_finds_the_lost_kick() {
    conversation(1, false);
}
