//! The tool's messages: plain lines on standard error, with colours only on a terminal.

use std::io::{IsTerminal as _, stderr, stdout};
use std::time::{Duration, Instant};

fn paint(colour: &str, text: &str, terminal: bool) -> String {
    if terminal { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Prints that a step begins.
pub fn step(verb: &str, what: &str) {
    eprintln!("{} {what}", paint("1;36", &format!("{verb:>9}"), stderr().is_terminal()));
}

/// Prints an error.
pub fn error(text: &str) {
    eprintln!("{} {text}", paint("1;31", "error:", stderr().is_terminal()));
}

/// Prints what is wrong, though the work goes on.
pub fn warning(text: &str) {
    eprintln!("{} {text}", paint("1;33", "warning:", stderr().is_terminal()));
}

/// A word of a result list on standard output, green or red.
pub fn verdict(word: &str, good: bool) -> String {
    paint(if good { "32" } else { "1;31" }, word, stdout().is_terminal())
}

/// A part of a line on standard output, in a colour by `index`.
pub fn tag(index: usize, text: &str) -> String {
    paint(["36", "33", "35", "34"][index % 4], text, stdout().is_terminal())
}

/// Seconds as minutes and seconds: `25:01`.
pub fn minutes(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    format!("{}:{:02}", whole / 60, whole % 60)
}

/// Prints the progress of a long operation, at most every two seconds.
pub struct Progress {
    verb: &'static str,
    next: Instant,
}

impl Progress {
    const EVERY: Duration = Duration::from_secs(2);

    /// Begins. Prints nothing for the first two seconds.
    pub fn new(verb: &'static str) -> Self {
        Self { verb, next: Instant::now() + Self::EVERY }
    }

    /// Prints the progress, if the last print was two seconds ago.
    pub fn at(&mut self, what: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            step(self.verb, &what());
            self.next = Instant::now() + Self::EVERY;
        }
    }
}
