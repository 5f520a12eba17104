//! A line editor for a serial terminal. It takes bytes, writes the echo, and returns a line at Enter. The keys are
//! those of ECMA-48 terminals.

use core::fmt::{self, Write};

use heapless::{Deque, String};

/// Most lines in the history.
const HISTORY: usize = 16;
/// Most characters in a line. A further one rings the bell.
const MAX_LENGTH: usize = 200;

/// The position of the input in an escape sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// ESC.
    Begun,
    /// ESC [ and parameters.
    Sequence,
}

/// A typed line.
pub type Typed = String<MAX_LENGTH>;

/// The editor's state: one for each terminal. It needs no heap.
#[derive(Debug, Default)]
pub struct Editor {
    line: Typed,
    history: Deque<Typed, HISTORY>,
    /// Which line of the history is shown, counted from the latest. 0 if none.
    back: usize,
    escape: Escape,
    /// Whether the last byte was a carriage return. A line feed that follows belongs to it.
    after_return: bool,
}

impl Editor {
    /// Makes an empty editor.
    #[must_use]
    pub const fn new() -> Self {
        Self { line: Typed::new(), history: Deque::new(), back: 0, escape: Escape::None, after_return: false }
    }

    /// Returns what has been typed so far, to show it again after other output.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.line
    }

    /// Whether the next byte is a key of its own: it does not belong to an escape sequence.
    #[must_use]
    pub fn is_between_keys(&self) -> bool {
        self.escape == Escape::None
    }

    /// Adds a text to the line, as if typed. What does not fit is left out.
    ///
    /// # Errors
    /// Those of `echo`.
    pub fn insert(&mut self, text: &str, echo: &mut dyn Write) -> fmt::Result {
        for byte in text.bytes().filter(|byte| (b' '..=b'~').contains(byte)) {
            self.add(byte, echo)?;
        }
        Ok(())
    }

    fn add(&mut self, byte: u8, echo: &mut dyn Write) -> fmt::Result {
        match self.line.push(char::from(byte)) {
            Ok(()) => echo.write_char(char::from(byte)),
            Err(_) => echo.write_char('\x07'),
        }
    }

    /// Takes a byte and writes its echo to `echo`. Returns the line when it is complete.
    ///
    /// Backspace and DEL delete a character, Ctrl-W a word, Ctrl-U the whole line. Ctrl-C drops the line. Up and down
    /// (or Ctrl-P and Ctrl-N) go through the last 16 lines. Bytes outside ASCII are ignored, because no command has
    /// any.
    ///
    /// # Errors
    /// Those of `echo`.
    pub fn feed(&mut self, byte: u8, echo: &mut dyn Write) -> Result<Option<Typed>, fmt::Error> {
        let after_return = core::mem::replace(&mut self.after_return, byte == b'\r');
        match (self.escape, byte) {
            (Escape::Begun, b'[') => self.escape = Escape::Sequence,
            (Escape::Begun, _) => self.escape = Escape::None,
            (Escape::Sequence, 0x20..=0x3f) => {}
            (Escape::Sequence, key) => {
                self.escape = Escape::None;
                match key {
                    b'A' => self.recall(self.back.saturating_add(1), echo)?,
                    b'B' => self.recall(self.back.saturating_sub(1), echo)?,
                    _ => {}
                }
            }
            (Escape::None, b'\n') if after_return => {}
            (Escape::None, b'\r' | b'\n') => {
                echo.write_str("\r\n")?;
                return Ok(Some(self.finish()));
            }
            (Escape::None, 0x1b) => self.escape = Escape::Begun,
            (Escape::None, 0x08 | 0x7f) => self.erase(1, echo)?,
            (Escape::None, 0x15) => self.erase(self.line.len(), echo)?,
            (Escape::None, 0x17) => {
                let kept = self.line.trim_end().rfind(' ').map_or(0, |space| space.saturating_add(1));
                self.erase(self.line.len().saturating_sub(kept), echo)?;
            }
            (Escape::None, 0x03) => {
                self.line.clear();
                self.back = 0;
                echo.write_str("^C\r\n")?;
                return Ok(Some(Typed::new()));
            }
            (Escape::None, 0x10) => self.recall(self.back.saturating_add(1), echo)?,
            (Escape::None, 0x0e) => self.recall(self.back.saturating_sub(1), echo)?,
            (Escape::None, b' '..=b'~') => self.add(byte, echo)?,
            (Escape::None, _) => {}
        }
        Ok(None)
    }

    fn finish(&mut self) -> Typed {
        let line = core::mem::take(&mut self.line);
        self.back = 0;
        if !line.trim().is_empty() && self.history.back() != Some(&line) {
            if self.history.is_full() {
                self.history.pop_front();
            }
            // There is room.
            let _ = self.history.push_back(line.clone());
        }
        line
    }

    /// Erases characters on the terminal. The line is ASCII, so a byte is a column.
    fn erase(&mut self, count: usize, echo: &mut dyn Write) -> fmt::Result {
        for _ in 0..count {
            if self.line.pop().is_some() {
                echo.write_str("\x08 \x08")?;
            }
        }
        Ok(())
    }

    fn recall(&mut self, back: usize, echo: &mut dyn Write) -> fmt::Result {
        let line = match back {
            0 => Typed::new(),
            _ => match self.history.iter().rev().nth(back.saturating_sub(1)) {
                Some(line) => line.clone(),
                None => return echo.write_char('\x07'),
            },
        };
        self.back = back;
        self.erase(self.line.len(), echo)?;
        echo.write_str(&line)?;
        self.line = line;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn type_in(editor: &mut Editor, bytes: &[u8]) -> (Vec<Typed>, std::string::String) {
        let mut echo = std::string::String::new();
        let lines = bytes.iter().filter_map(|&byte| editor.feed(byte, &mut echo).unwrap()).collect();
        (lines, echo)
    }

    #[test]
    fn what_is_typed_is_echoed_and_given_at_enter() {
        let (lines, echo) = type_in(&mut Editor::new(), b"list\r\nshow\n");
        assert_eq!(lines, ["list", "show"]);
        assert_eq!(echo, "list\r\nshow\r\n");
    }

    #[test]
    fn backspace_ctrl_u_and_ctrl_w_take_back() {
        assert_eq!(type_in(&mut Editor::new(), b"lisx\x7ft\r").0, ["list"]);
        assert_eq!(type_in(&mut Editor::new(), b"\x08\x08junk\x15list\r").0, ["list"]);
        assert_eq!(type_in(&mut Editor::new(), b"stop abc  \x17b\r").0, ["stop b"]);
        assert_eq!(type_in(&mut Editor::new(), b"ab\x7f").1, "ab\x08 \x08");
    }

    #[test]
    fn the_arrows_go_through_history_and_back() {
        let mut editor = Editor::new();
        type_in(&mut editor, b"one\rtwo\rtwo\r");
        assert_eq!(type_in(&mut editor, b"\x1b[A\r").0, ["two"], "a repeated line is kept once");
        assert_eq!(type_in(&mut editor, b"\x1b[A\x1b[A\r").0, ["one"]);
        assert_eq!(type_in(&mut editor, b"\x10\x10\r").0, ["two"], "the one recalled is the latest now");
        assert_eq!(type_in(&mut editor, b"\x10\x10\x0e\r").0, ["two"]);
        assert_eq!(type_in(&mut editor, b"x\x1b[A\x1b[B\r").0, [""], "below the latest is the empty line");
    }

    #[test]
    fn history_holds_sixteen_lines() {
        let mut editor = Editor::new();
        for line in 0..20 {
            type_in(&mut editor, format!("line{line}\r").as_bytes());
        }
        let (lines, echo) = type_in(&mut editor, &b"\x1b[A".repeat(17).into_iter().chain(*b"\r").collect::<Vec<_>>());
        assert_eq!(lines, ["line4"]);
        assert!(echo.contains('\x07'), "the bell says that there is no more");
    }

    #[test]
    fn other_escape_sequences_leave_no_trace() {
        assert_eq!(type_in(&mut Editor::new(), b"a\x1b[3~\x1b[1;5Cb\x1bOc\r").0, ["abc"]);
    }

    #[test]
    fn a_line_does_not_grow_without_limit() {
        let (lines, _) = type_in(&mut Editor::new(), &[b"x".repeat(500).as_slice(), b"\r"].concat());
        assert_eq!(lines[0].len(), MAX_LENGTH);
    }

    proptest! {
        #[test]
        fn the_echo_shows_what_the_line_holds(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut editor = Editor::new();
            let (_, echo) = type_in(&mut editor, &bytes);
            // A terminal that knows BS, BEL and printable characters must show the editor's line.
            let mut shown = std::string::String::new();
            let last = echo.rsplit("\r\n").next().unwrap_or_default();
            let mut characters = last.chars();
            while let Some(character) = characters.next() {
                match character {
                    '\x08' => { shown.pop(); characters.nth(1); }
                    '\x07' => {}
                    c => shown.push(c),
                }
            }
            prop_assert_eq!(shown, editor.text());
        }
    }
}
