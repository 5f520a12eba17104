//! What the tool says while it works: plain lines on standard error, with colours only on a terminal.

use std::io::{IsTerminal as _, stderr, stdout};
use std::time::{Duration, Instant};

fn paint(colour: &str, text: &str, terminal: bool) -> String {
    if terminal { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A step that begins.
pub fn step(verb: &str, what: &str) {
    eprintln!("{} {what}", paint("1;36", &format!("{verb:>9}"), stderr().is_terminal()));
}

/// What went wrong.
pub fn error(text: &str) {
    eprintln!("{} {text}", paint("1;31", "error:", stderr().is_terminal()));
}

/// A word of a result list on standard output, green or red.
pub fn verdict(word: &str, good: bool) -> String {
    paint(if good { "32" } else { "1;31" }, word, stdout().is_terminal())
}

/// A part of a line on standard output that tells it from its neighbours.
pub fn tag(index: usize, text: &str) -> String {
    paint(["36", "33", "35", "34"][index % 4], text, stdout().is_terminal())
}

/// Seconds as minutes and seconds: `25:01`.
pub fn minutes(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    format!("{}:{:02}", whole / 60, whole % 60)
}

/// Lines about something that takes long, not more often than every two seconds.
pub struct Progress {
    verb: &'static str,
    next: Instant,
}

impl Progress {
    const EVERY: Duration = Duration::from_secs(2);

    /// Begins; nothing is shown for the first two seconds.
    pub fn new(verb: &'static str) -> Self {
        Self { verb, next: Instant::now() + Self::EVERY }
    }

    /// Shows how far it is, if it is time to.
    pub fn at(&mut self, what: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            step(self.verb, &what());
            self.next = Instant::now() + Self::EVERY;
        }
    }
}
