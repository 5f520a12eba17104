//! Sends commands to the engine and waits for its replies. The engine takes one command at a time, so the clients'
//! threads take turns.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use engine::control::{Command, Reply};

use crate::backends::{Config, Control};

/// Time between two looks for a reply. An engine's turn lasts microseconds.
const PAUSE: Duration = Duration::from_micros(20);

/// The way to one engine, shared by all clients.
pub struct EngineControl {
    control: &'static Control,
    /// Held from a command to its reply.
    busy: Mutex<()>,
    /// Lets some time pass.
    pause: Box<dyn Fn() + Send + Sync>,
}

impl EngineControl {
    /// Takes over the way to an engine. There must be one value for each engine.
    pub fn new(control: &'static Control) -> Self {
        Self::with_pause(control, || thread::sleep(PAUSE))
    }

    /// The same for an engine that has no thread of its own: `pause` lets it make a turn.
    pub fn with_pause(control: &'static Control, pause: impl Fn() + Send + Sync + 'static) -> Self {
        Self { control, busy: Mutex::new(()), pause: Box::new(pause) }
    }

    /// Tells the engine something and waits for its reply. A device with requests in flight is asked for again until it
    /// is detached. Between two questions the other clients have their turn.
    pub fn command(&self, mut command: Command<Config>) -> Reply {
        loop {
            let again = command.again();
            match (self.ask(command), again) {
                (Reply::Detaching, Some(again)) => command = again,
                (reply, _) => return reply,
            }
            (self.pause)();
        }
    }

    /// Sends a command and returns the reply to it.
    fn ask(&self, mut command: Command<Config>) -> Reply {
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while let Err(back) = self.control.submit(command) {
            command = back;
            (self.pause)();
        }
        loop {
            if let Some(reply) = self.control.reply() {
                return reply;
            }
            (self.pause)();
        }
    }

    /// The number of turns that the engine has finished.
    pub fn turns(&self) -> u64 {
        let counters = &self.control.counters;
        counters.busy_turns.get().wrapping_add(counters.idle_turns.get())
    }

    /// Waits until the engine has finished its current turn. Afterwards it uses nothing that it read before this call.
    pub fn wait_for_turn(&self) {
        let before = self.turns();
        while self.turns().wrapping_sub(before) < 2 {
            (self.pause)();
        }
    }
}
