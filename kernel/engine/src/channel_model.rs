//! A loom model of `channel.rs` itself: every interleaving of the engine's turns with a guest that stops while
//! completions are in flight. The guest's memory is a cell that loom watches. loom reports two accesses at the same
//! time. The model allows up to three preemptions.

#![allow(unsafe_code, reason = "the cells of channel.rs, on loom's")]
#![allow(dead_code, reason = "the model uses a part of what the file defines")]

mod atomics;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "channel.rs"]
mod channel;

use atomics::{AtomicU32, Ordering, UnsafeCell};
use channel::Channel;
use loom::{sync::Arc, thread};

/// A guest's memory.
struct Memory(UnsafeCell<u32>);

// SAFETY: loom reports it if two threads access the cell at the same time.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn touch(&self) {
        // SAFETY: as above.
        unsafe { *self.0.get() += 1 };
    }
}

/// A guest that stops: its memory and its core. The next life gets both.
struct Life {
    channel: Channel<(), ()>,
    memory: Memory,
    /// The core's local APIC: 1 if an interrupt of this life is pending. Each access is a swap, so it sees the one
    /// before.
    irr: AtomicU32,
}

fn stop(drained_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let channel = Channel {
            state: AtomicU32::new(channel::EMPTY),
            command: UnsafeCell::new(None),
            reply: UnsafeCell::new(None),
        };
        let life = Arc::new(Life { channel, memory: Memory::new(), irr: AtomicU32::new(0) });
        let engine = {
            let life = life.clone();
            thread::spawn(move || {
                let (mut attached, mut detaching, mut held) = (true, false, false);
                while attached {
                    if held || !detaching {
                        // A completion: the buffer, then the interrupt to the core.
                        life.memory.touch();
                        life.irr.swap(1, Ordering::AcqRel);
                        held = !held && !detaching;
                    }
                    detaching |= life.channel.take().is_some();
                    if detaching && !held {
                        life.channel.answer(());
                        attached = false;
                    } else {
                        thread::yield_now();
                    }
                }
            })
        };
        // The vCPU has stopped, and its core's local APIC is drained.
        life.irr.swap(0, Ordering::AcqRel);
        assert!(life.channel.submit(()).is_ok());
        while life.channel.reply().is_none() {
            thread::yield_now();
        }
        // The next life: its memory is cleared, and its core drained, before it runs.
        life.memory.touch();
        if drained_again {
            life.irr.swap(0, Ordering::AcqRel);
        }
        engine.join().unwrap();
        assert_eq!(life.irr.swap(0, Ordering::AcqRel), 0, "an interrupt of the former life came");
    });
}

#[test]
fn no_completion_of_a_life_reaches_the_next_ones_memory_or_core() {
    stop(true);
}

#[test]
#[should_panic = "of the former life"]
fn a_core_that_is_drained_at_the_end_of_a_life_alone_may_be_reached_later() {
    stop(false);
}
