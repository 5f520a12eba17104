//! Shows on a terminal how far a recording is.

use std::io::{Write as _, stderr};
use std::time::{Duration, Instant};

use sidecore_trace::record::State;

/// Time between two lines.
const PAUSE: Duration = Duration::from_millis(250);

/// One line of standard error, which is written over. Without effect if it is no terminal.
pub struct Progress {
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// Of a recording that begins now.
    pub fn new(terminal: bool) -> Self {
        Self { terminal, started: Instant::now(), shown: None }
    }

    /// Shows the line, but not too often.
    pub fn show(&mut self, state: &State) {
        if !self.terminal || self.shown.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        self.shown = Some(Instant::now());
        let seconds = self.started.elapsed().as_secs();
        // An error would concern the terminal only, and not the recording.
        let _ = write!(
            stderr(),
            "\r\x1b[K{seconds} s: {} records, {} lost, {} KiB. Ctrl-C ends it.",
            state.records,
            state.lost,
            state.bytes / 1024
        );
    }

    /// Clears the line.
    pub fn end(&self) {
        if self.shown.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
