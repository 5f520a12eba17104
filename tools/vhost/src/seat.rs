//! The clients' seat with the engine: one command at a time, as the hypervisor's control core gives them.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use engine::control::{Command, Control, Reply};

/// Turns last microseconds.
const PAUSE: Duration = Duration::from_micros(20);

/// The seat.
pub struct Seat {
    control: &'static Control,
    taken: Mutex<()>,
}

impl Seat {
    /// The only one of this engine.
    pub fn new(control: &'static Control) -> Self {
        Self { control, taken: Mutex::new(()) }
    }

    /// Tells the engine something and waits for its reply.
    pub fn command(&self, mut command: Command) -> Reply {
        let _taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while let Err(back) = self.control.submit(command) {
            command = back;
            thread::sleep(PAUSE);
        }
        loop {
            if let Some(reply) = self.control.reply() {
                return reply;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Turns that the engine has ended.
    pub fn turns(&self) -> u64 {
        let counters = &self.control.counters;
        counters.busy_turns.get().wrapping_add(counters.idle_turns.get())
    }

    /// Waits until a turn that was under way is over, and with it what the engine had read before.
    pub fn pass(&self) {
        let before = self.turns();
        while self.turns().wrapping_sub(before) < 2 {
            thread::sleep(PAUSE);
        }
    }
}
