//! A loom model of `phase.rs` itself: every interleaving of the engine's turns with a driver that resets its device
//! while completions are in flight. The guest's memory is a cell that loom watches. loom reports two simultaneous
//! accesses.

#![allow(unsafe_code, reason = "a cell that loom watches")]
#![allow(dead_code, reason = "the model uses a part of what the file defines")]

mod atomics;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "phase.rs"]
mod phase;

use atomics::{AtomicU32, Ordering, UnsafeCell};
use loom::{sync::Arc, thread};
use phase::{Phase, PhaseWord};

/// A guest's memory.
struct Memory(UnsafeCell<u32>);

// SAFETY: only the model uses it, and loom reports two simultaneous accesses.
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

/// What a device's driver and its engine share.
struct Device {
    phase: PhaseWord,
    bell: AtomicU32,
    memory: Memory,
}

/// The engine's side: the steps of `Engine::handle_doorbell` and of the back-end in a turn.
#[derive(Default)]
struct Server {
    running: bool,
    /// A back-end holds a request's buffer, and will complete it in a later turn.
    held: bool,
    /// Answers a reset though a request is held. This is the bug that the model must find.
    hasty: bool,
    unfinished: bool,
}

impl Server {
    fn turn(&mut self, device: &Device) {
        if device.bell.swap(0, Ordering::Acquire) != 0 || std::mem::take(&mut self.unfinished) {
            match device.phase.get() {
                Phase::Idle | Phase::Running => {}
                // If the driver has requested a reset meanwhile, its kick brings the next turn here again.
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
                // It reads the status until the reset is done. Then the buffers are its own again.
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
        // Nothing more comes. A reset that was seen is done soon; one that was missed is never done.
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
