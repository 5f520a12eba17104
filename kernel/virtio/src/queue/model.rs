//! A loom model: every interleaving of completions with a driver that goes to sleep. Memory may delay a store until a
//! fence.
//!
//! The ring is reduced to buffers, the used index, and the index at which the driver wants an interrupt. The engine's
//! steps are `publish` of either ring format, the fence of its turn, and `used_notification`. The driver's steps are
//! those of virtio 1.3 2.7.14.

#![allow(unsafe_code, reason = "cells that loom watches")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

const REQUESTS: u32 = 2;

#[derive(Default)]
struct Ring {
    buffers: [UnsafeCell<u32>; REQUESTS as usize],
    used: AtomicU32,
    used_event: AtomicU32,
    /// An interrupt is pending. Each access sees the one before.
    interrupt: AtomicBool,
}

impl Ring {
    /// The engine completes request `n` and ends its turn.
    fn complete(&self, n: u32, fenced: bool) {
        // SAFETY: loom reports any access to the buffer before the used index covers it.
        self.buffers[n as usize].with_mut(|buffer| unsafe { *buffer = n + 1 });
        self.used.store(n + 1, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        if self.used_event.load(Ordering::Relaxed) == n {
            self.interrupt.swap(true, Ordering::AcqRel);
        }
    }

    /// The driver takes the used requests after the first `seen`.
    fn take(&self, seen: u32) -> u32 {
        let used = self.used.load(Ordering::Acquire);
        for n in seen..used {
            // SAFETY: as above.
            let found = self.buffers[n as usize].with(|buffer| unsafe { *buffer });
            assert_eq!(found, n + 1, "a buffer is used and not yet written");
        }
        used
    }

    /// The driver takes the used requests, asks for an interrupt at the next one, and reads the used index again.
    /// Returns how many it has seen.
    fn sleep(&self, mut seen: u32) -> u32 {
        loop {
            seen = self.take(seen);
            self.used_event.store(seen, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.used.load(Ordering::Acquire) == seen {
                return seen;
            }
        }
    }
}

fn conversation(fenced: bool) {
    loom::model(move || {
        let ring = Arc::new(Ring::default());
        let engine = {
            let ring = ring.clone();
            thread::spawn(move || (0..REQUESTS).for_each(|n| ring.complete(n, fenced)))
        };
        let mut seen = ring.sleep(0);
        if ring.interrupt.swap(false, Ordering::AcqRel) {
            seen = ring.sleep(seen);
        }
        engine.join().unwrap();
        // Nothing more comes. The driver wakes once for each interrupt.
        while ring.interrupt.swap(false, Ordering::AcqRel) {
            seen = ring.sleep(seen);
        }
        assert_eq!(seen, REQUESTS, "a driver sleeps on what is used");
    });
}

#[test]
fn no_driver_sleeps_on_what_is_used_however_its_wish_and_the_completion_meet() {
    conversation(true);
}

#[test]
#[should_panic = "sleeps on what is used"]
fn without_the_engines_fence_the_model_finds_the_lost_interrupt() {
    conversation(false);
}
