//! One serial port for people and programs (`json=` names people's port). A line of JSON begins with the byte RS, in both
//! directions, as in RFC 7464. Everything else is people's.
//!
//! ```text
//!  people's Output ───┐                                     ┌──▶ Shell
//!                     ├─▶ SharedOutput ─▶ UART ─▶ SharedInput
//!  programs' Output ──┘   RS {...} CR LF                    └──▶ LineReader
//! ```
//!
//! - A line of JSON goes out whole. It begins where people's text has ended a line, or has nothing more to say now. If the prompt is
//!   on the screen, it is erased; the shell shows it again later, with what is typed.
//! - Both take turns, a line each. People's text without an end of line keeps programs waiting for [`LONGEST`] bytes at most.
//! - JSON has no control characters inside strings (RFC 8259, 7), so RS is never within a line of it. People's text loses the byte
//!   ([`without_mark`]). So no guest can begin a line of JSON.
//! - A terminal shows nothing for RS. It shows the JSON.

use crate::{Output, Prompt, RECORD};

/// Bytes of people's text without an end of line, after which a line of JSON may begin. A longer one is a guest's that writes
/// without end.
const LONGEST: usize = 1 << 10;

/// Whose bytes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// People's text.
    People,
    /// A line of JSON, with what is before and behind it.
    Programs,
}

/// Who is writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// People. `served`: they have sent something in this turn.
    People { served: bool },
    /// Programs, within a line. `returned`: it has its CR, and LF is next.
    Programs { returned: bool },
}

/// The output of people and programs on one UART.
#[derive(Debug)]
pub struct SharedOutput {
    turn: Turn,
    /// What goes out before anything else.
    before: &'static [u8],
    /// Bytes of people's text since its last end of line.
    column: usize,
}

impl Default for SharedOutput {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedOutput {
    /// Makes one at the beginning of a line.
    #[must_use]
    pub const fn new() -> Self {
        Self { turn: Turn::People { served: false }, before: &[], column: 0 }
    }

    /// Gives bytes of both outputs to the UART while it takes them and the budgets last. `write` gets some bytes and whose they
    /// are, and returns how many the UART has taken.
    pub fn pump<const A: usize, const B: usize, const C: usize, const D: usize>(
        &mut self,
        people: &mut Output<A, B>,
        programs: &mut Output<C, D>,
        prompt: &Prompt,
        mut write: impl FnMut(Whose, &[u8]) -> usize,
    ) {
        loop {
            if !self.before.is_empty() {
                let taken = write(Whose::Programs, self.before);
                self.before = self.before.get(taken..).unwrap_or_default();
                if taken == 0 {
                    return;
                }
                continue;
            }
            let goes_on = match self.turn {
                Turn::People { served } => {
                    let is_fair = people.is_empty() || served && self.column == 0 || self.column >= LONGEST;
                    if !programs.is_empty() && is_fair {
                        self.begin(people.is_empty(), prompt);
                        continue;
                    }
                    self.pump_people(people, &mut write)
                }
                // The rest of a line is missing only if a panic has cut it.
                Turn::Programs { .. } if programs.is_empty() && !people.is_empty() => {
                    (self.turn, self.before) = (Turn::People { served: false }, b"\r\n");
                    continue;
                }
                Turn::Programs { returned } => self.pump_programs(programs, returned, &mut write),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Begins a line of JSON. `is_last`: people's text is all on the screen.
    fn begin(&mut self, is_last: bool, prompt: &Prompt) {
        let has_prompt = is_last && !prompt.before_message().is_empty();
        self.before = match (has_prompt, self.column) {
            // CR, and erase to the end of the line (ECMA-48 8.3.41).
            (true, _) => b"\r\x1b[K\x1e",
            (false, 0) => b"\x1e",
            (false, _) => b"\r\n\x1e",
        };
        (self.turn, self.column) = (Turn::Programs { returned: false }, 0);
    }

    /// Sends up to a line of people's text. Returns whether the UART may take more.
    fn pump_people<const A: usize, const B: usize>(
        &mut self,
        people: &mut Output<A, B>,
        write: &mut impl FnMut(Whose, &[u8]) -> usize,
    ) -> bool {
        let (mut any, mut done) = (false, false);
        people.pump(|bytes| {
            if done {
                return 0;
            }
            let end = bytes.iter().position(|&byte| byte == b'\n').map(|end| end.saturating_add(1));
            let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
            let taken = write(Whose::People, part).min(part.len());
            any |= taken > 0;
            done = taken < part.len() || end.is_some();
            self.column = if end.is_some() && taken == part.len() { 0 } else { self.column.saturating_add(taken) };
            taken
        });
        if any {
            self.turn = Turn::People { served: true };
        }
        any
    }

    /// Sends up to the end of a line of JSON. Returns whether the UART may take more.
    fn pump_programs<const C: usize, const D: usize>(
        &mut self,
        programs: &mut Output<C, D>,
        mut returned: bool,
        write: &mut impl FnMut(Whose, &[u8]) -> usize,
    ) -> bool {
        let (mut any, mut ended) = (false, false);
        programs.pump(|bytes| {
            if ended || bytes.is_empty() {
                return 0;
            }
            let text = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
            if text > 0 {
                let part = bytes.get(..text).unwrap_or_default();
                let taken = write(Whose::Programs, part).min(part.len());
                any |= taken > 0;
                return taken;
            }
            // A terminal needs CR too. To a program it is white space.
            returned = returned || write(Whose::Programs, b"\r") > 0;
            ended = returned && write(Whose::Programs, b"\n") > 0;
            any |= ended;
            usize::from(ended)
        });
        self.turn = if ended { Turn::People { served: false } } else { Turn::Programs { returned } };
        any
    }
}

/// The pieces of people's text without the byte that would begin a line of JSON.
pub fn without_mark<'a>(pieces: impl Iterator<Item = &'a [u8]> + Clone) -> impl Iterator<Item = &'a [u8]> + Clone {
    pieces.flat_map(|piece| piece.split(|&byte| byte == RECORD))
}

/// What a received byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A byte that a person has typed.
    People(u8),
    /// A byte of a command in JSON, or the end of its line.
    Programs(u8),
    /// Nothing.
    Nothing,
}

/// Tells the bytes of programs from those that people type. A line of JSON ends at CR, LF, the next RS, or any other control
/// character but HT, because JSON has none. So a line that its program has not ended swallows what is typed up to Enter or Ctrl-C.
#[derive(Debug, Default)]
pub struct SharedInput {
    in_line: bool,
    /// The last byte was the CR of a line of JSON. An LF that follows belongs to it.
    after_return: bool,
}

impl SharedInput {
    /// Makes one at the beginning.
    #[must_use]
    pub const fn new() -> Self {
        Self { in_line: false, after_return: false }
    }

    /// Takes a byte.
    pub fn take(&mut self, byte: u8) -> Received {
        let after_return = core::mem::take(&mut self.after_return);
        match byte {
            RECORD => {
                // Ends the line before, if there is one. A reader of lines skips an empty one.
                self.in_line = true;
                Received::Programs(b'\n')
            }
            b'\n' if after_return => Received::Nothing,
            _ if !self.in_line => Received::People(byte),
            b' '.. | b'\t' => Received::Programs(byte),
            _ => {
                (self.in_line, self.after_return) = (false, byte == b'\r');
                Received::Programs(b'\n')
            }
        }
    }
}

/// The JSON in a line that came from a shared port, without its end. `None`: the line is people's.
#[must_use]
pub fn record(line: &[u8]) -> Option<&[u8]> {
    let at = line.iter().rposition(|&byte| byte == RECORD)?;
    line.get(at.saturating_add(1)..)
}

#[cfg(test)]
mod tests;
