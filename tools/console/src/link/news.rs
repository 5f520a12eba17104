//! What a way to a machine tells the program, and what it takes.

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

/// Most bytes of one message. With [`QUEUE`] it bounds what waits for the screen.
pub const CHUNK: usize = 1 << 16;
/// Messages that wait. Then nothing is read from the connection.
pub const QUEUE: usize = 16;

/// What a way tells the program.
#[derive(Debug)]
pub enum News {
    /// It is open. Requests go there.
    Up(Requests),
    /// Bytes of the machine. With the time, if it is a recording.
    Bytes(Vec<u8>, Option<Duration>),
    /// It is closed, or could not be opened, because of that. The next attempt is after that pause.
    Down(String, Duration),
    /// The recording has ended.
    Ended,
}

/// Takes requests for a machine, and never waits for it.
#[derive(Clone, Debug)]
pub struct Requests(SyncSender<String>);

impl Requests {
    /// Makes it of the end of a queue.
    #[must_use]
    pub const fn new(queue: SyncSender<String>) -> Self {
        Self(queue)
    }

    /// Sends a line. Returns whether there was room for it.
    #[must_use]
    pub fn send(&self, line: String) -> bool {
        !matches!(self.0.try_send(line), Err(TrySendError::Full(_)))
    }
}
