//! Output that waits for a UART: two queues of bytes of fixed size. Nobody waits for room in them. A message that does not
//! fit is dropped whole and counted.
//!
//! ```text
//!  answers to commands ──▶ first ──┐
//!                                  ├─▶ pump ──▶ UART, as much as it takes now
//!  events, guests' output ─▶ rest ─┘
//! ```
//!
//! - [`Class::Answer`]: goes before everything that waits in `rest`, but never into the middle of a line.
//! - [`Class::Event`]: keeps its place among guests' output.
//! - [`Class::Guest`]: is taken only while little waits in `rest`. So events always find room, whatever guests write, and are
//!   late by the guests' share at most.

use core::fmt;
use core::fmt::Write as _;

use heapless::Deque;

/// The first byte of a line of JSON on a shared port: RS (RFC 7464, 2.2). People's text never has it.
pub const RECORD: u8 = 0x1e;
/// Ticks without a byte taken, after which a UART counts as stalled. A UART of 9,600 baud takes a byte each millisecond.
const STALL_TICKS: u32 = 250;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The answer to a command.
    Answer,
    /// Something that sidecore says by itself.
    Event,
    /// Output of a guest.
    Guest,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Loss {
    /// Adds a message of so many bytes.
    pub const fn add(&mut self, bytes: usize) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

/// The output of a UART. `FIRST` and `REST` are the sizes of its queues in bytes.
#[derive(Debug)]
pub struct Output<const FIRST: usize, const REST: usize> {
    first: Deque<u8, FIRST>,
    rest: Deque<u8, REST>,
    /// Guests' output is taken while no more bytes than this wait in `rest`.
    guests: usize,
    /// Whether the last byte taken from `rest` was not the end of a line.
    mid_line: bool,
    /// Bytes that may still be written in this tick.
    budget: usize,
    /// Ticks since the UART last took a byte, while something waited.
    idle_ticks: u32,
    untold: Loss,
    total: Loss,
}

impl<const FIRST: usize, const REST: usize> Output<FIRST, REST> {
    /// Makes an output where nothing waits. `guests` is the share of guests in `REST`, in bytes.
    #[must_use]
    pub const fn new(guests: usize) -> Self {
        Self {
            first: Deque::new(),
            rest: Deque::new(),
            guests,
            mid_line: false,
            budget: 0,
            idle_ticks: 0,
            untold: Loss { messages: 0, bytes: 0 },
            total: Loss { messages: 0, bytes: 0 },
        }
    }

    /// Begins a tick: up to `budget` bytes may be written in it.
    pub fn begin_tick(&mut self, budget: usize) {
        self.budget = budget;
        self.idle_ticks = if self.is_empty() { 0 } else { self.idle_ticks.saturating_add(1) };
    }

    /// Whether the UART has taken nothing for a long time, although something waits.
    #[must_use]
    pub const fn is_stalled(&self) -> bool {
        self.idle_ticks >= STALL_TICKS
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty()
    }

    /// Bytes of a message of that class that fit now.
    #[must_use]
    pub fn room(&self, class: Class) -> usize {
        match class {
            Class::Answer => FIRST.saturating_sub(self.first.len()),
            Class::Event => REST.saturating_sub(self.rest.len()),
            Class::Guest => self.guests.min(REST).saturating_sub(self.rest.len()),
        }
    }

    /// Adds a message, in pieces that `pieces` yields. Returns whether it fitted. A message that does not fit is dropped
    /// whole and counted.
    pub fn push<'a>(&mut self, class: Class, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
        let bytes = pieces.clone().map(<[u8]>::len).fold(0, usize::saturating_add);
        if bytes > self.room(class) {
            self.untold.add(bytes);
            self.total.add(bytes);
            return false;
        }
        for &byte in pieces.flatten() {
            // There is room: the pieces are those that were counted.
            let _ = match class {
                Class::Answer => self.first.push_back(byte),
                Class::Event | Class::Guest => self.rest.push_back(byte),
            };
        }
        true
    }

    /// Adds text for a terminal, as it is made: each LF becomes CR LF, and RS is left out. A line that does not fit is dropped whole
    /// and counted.
    pub fn print(&mut self, text: fmt::Arguments<'_>) {
        let mut lines = Lines { output: self, bytes: 0, fits: true };
        // Writing here does not fail.
        let _ = lines.write_fmt(text);
        lines.end();
    }

    /// Notes a message that was dropped before it had bytes, because there was no memory for them.
    pub const fn lost(&mut self) {
        self.untold.add(0);
        self.total.add(0);
    }

    /// What was dropped and not told yet. `None`: nothing.
    #[must_use]
    pub const fn untold(&self) -> Option<Loss> {
        if self.untold.messages == 0 { None } else { Some(self.untold) }
    }

    /// Notes that the loss has been told.
    pub fn told(&mut self) {
        self.untold = Loss::default();
    }

    /// All that was dropped since the start.
    #[must_use]
    pub const fn total_loss(&self) -> Loss {
        self.total
    }

    /// Gives bytes to the UART while it takes them and the tick's budget lasts. `write` gets some bytes and returns how many
    /// the UART has taken.
    pub fn pump(&mut self, mut write: impl FnMut(&[u8]) -> usize) {
        while self.budget > 0 {
            let answers = !self.first.is_empty();
            let from_first = answers && !self.mid_line;
            let (chunk, _) = if from_first { self.first.as_slices() } else { self.rest.as_slices() };
            // A line in `rest` ends before an answer begins.
            let line = chunk.iter().position(|&byte| byte == b'\n').map_or(chunk.len(), |end| end.saturating_add(1));
            let most = if answers && !from_first { line } else { chunk.len() };
            let chunk = chunk.get(..most.min(self.budget)).unwrap_or_default();
            let taken = write(chunk).min(chunk.len());
            if taken == 0 {
                return;
            }
            if !from_first {
                self.mid_line = chunk.get(..taken).and_then(<[u8]>::last).is_some_and(|&byte| byte != b'\n');
            }
            for _ in 0..taken {
                let _ = if from_first { self.first.pop_front() } else { self.rest.pop_front() };
            }
            self.budget = self.budget.saturating_sub(taken);
            self.idle_ticks = 0;
            // The rest of a line may be missing, if its message did not end with an end of line. Then answers go on.
            self.mid_line &= !self.rest.is_empty();
        }
    }
}

/// Text on its way to `rest`.
struct Lines<'a, const FIRST: usize, const REST: usize> {
    output: &'a mut Output<FIRST, REST>,
    /// Bytes of the line so far.
    bytes: usize,
    /// Whether all of them are in the queue. If not, none is.
    fits: bool,
}

impl<const FIRST: usize, const REST: usize> Lines<'_, FIRST, REST> {
    fn add(&mut self, byte: u8) {
        if self.fits && self.output.rest.push_back(byte).is_err() {
            self.fits = false;
            (0..self.bytes).for_each(|_| _ = self.output.rest.pop_back());
        }
        self.bytes = self.bytes.saturating_add(1);
    }

    fn end(&mut self) {
        if !self.fits {
            self.output.untold.add(self.bytes);
            self.output.total.add(self.bytes);
        }
        (self.bytes, self.fits) = (0, true);
    }
}

impl<const FIRST: usize, const REST: usize> fmt::Write for Lines<'_, FIRST, REST> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes().filter(|&byte| byte != RECORD) {
            if byte == b'\n' {
                self.add(b'\r');
            }
            self.add(byte);
            if byte == b'\n' {
                self.end();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
