//! A driver that resets its device, and a guest that stops, while completions are in flight: every interleaving with the
//! engine's turns, tried by loom on `phase.rs` and `slot.rs` themselves. The guest's memory is a cell that loom watches:
//! two that touch it at once are found. Up to three preemptions where nothing else ends a search.

#![allow(unsafe_code, reason = "the cells of slot.rs, on loom's")]
#![allow(dead_code, reason = "the models use a part of what the files define")]

mod atomics {
    pub use loom::sync::atomic::{AtomicU32, Ordering};

    /// loom's cell as `core`'s: each access counts as a store.
    pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        pub fn get(&self) -> *mut T {
            self.0.with_mut(|pointer| pointer)
        }
    }
}
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "phase.rs"]
mod phase;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "slot.rs"]
mod slot;

use atomics::{AtomicU32, Ordering, UnsafeCell};
use loom::{sync::Arc, thread};
use phase::{Phase, PhaseWord};
use slot::Slot;

/// A guest's memory.
struct Memory(UnsafeCell<u32>);

// SAFETY: loom finds whoever touches it while another does.
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

/// A device as its driver and its engine share it.
struct Device {
    phase: PhaseWord,
    bell: AtomicU32,
    memory: Memory,
}

/// The engine's side of it: what `Engine::attend` and the back-end do in a turn.
#[derive(Default)]
struct Server {
    running: bool,
    /// A back-end holds a request's buffer, and will complete it in a later turn.
    held: bool,
    /// Answers a reset though a request is held: what must not be.
    hasty: bool,
    unfinished: bool,
}

impl Server {
    fn turn(&mut self, device: &Device) {
        if device.bell.swap(0, Ordering::Acquire) != 0 || std::mem::take(&mut self.unfinished) {
            match device.phase.get() {
                Phase::Idle | Phase::Running => {}
                // Where the driver has moved on to the reset, its bell brings the next turn here again.
                Phase::Activating => self.running = device.phase.step(Phase::Activating, Phase::Running),
                Phase::Resetting if self.held && !self.hasty => (self.running, self.unfinished) = (false, true),
                Phase::Resetting => {
                    self.running = false;
                    device.phase.step(Phase::Resetting, Phase::Idle);
                }
            }
        }
        if self.held {
            device.memory.touch();
            self.held = false;
        } else if self.running {
            self.held = true;
        }
    }
}

fn reset(hasty: bool) {
    loom::model(move || {
        let device = Device {
            phase: PhaseWord(AtomicU32::new(Phase::Idle as u32)),
            bell: AtomicU32::new(0),
            memory: Memory::new(),
        };
        let device = Arc::new(device);
        let driver = {
            let device = device.clone();
            thread::spawn(move || {
                device.memory.touch();
                assert!(device.phase.step(Phase::Idle, Phase::Activating));
                device.bell.fetch_or(1, Ordering::Release);
                device.phase.request_reset();
                device.bell.fetch_or(1, Ordering::Release);
                // It looks at the status until the reset is done, and the buffers are its own again.
                for _ in 0..2 {
                    if device.phase.get() == Phase::Idle {
                        return device.memory.touch();
                    }
                    thread::yield_now();
                }
            })
        };
        let mut server = Server { hasty, ..Server::default() };
        (0..4).for_each(|_| server.turn(&device));
        driver.join().unwrap();
        // Nothing more comes: a reset that was seen in time is done soon, one that was missed never.
        (0..3).for_each(|_| server.turn(&device));
        assert_eq!(device.phase.get(), Phase::Idle, "a reset was missed");
        device.memory.touch();
    });
}

#[test]
fn a_driver_gets_its_reset_when_nothing_touches_its_buffers_any_more_and_always_gets_it() {
    reset(false);
}

#[test]
#[should_panic = "Causality violation"]
fn an_engine_that_answers_a_reset_too_early_is_found_in_the_drivers_buffers() {
    reset(true);
}

/// A guest that stops: the memory and the core that the next life gets.
struct Life {
    slot: Slot<(), ()>,
    memory: Memory,
    /// The core's local APIC: an interrupt of this life waits in it. Each access sees the one before.
    irr: AtomicU32,
}

fn stop(drained_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let slot =
            Slot { state: AtomicU32::new(slot::EMPTY), command: UnsafeCell::new(None), reply: UnsafeCell::new(None) };
        let life = Arc::new(Life { slot, memory: Memory::new(), irr: AtomicU32::new(0) });
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
                    detaching |= life.slot.take().is_some();
                    if detaching && !held {
                        life.slot.answer(());
                        attached = false;
                    } else {
                        thread::yield_now();
                    }
                }
            })
        };
        // The vCPU has stopped, and its core's local APIC is drained.
        life.irr.swap(0, Ordering::AcqRel);
        assert!(life.slot.submit(()).is_ok());
        while life.slot.reply().is_none() {
            thread::yield_now();
        }
        // The next life: its memory is cleared, and its core drained before it runs.
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
