//! Filters a guest's output for the operator's terminal. A guest must not switch the terminal's modes, make it answer, move
//! what is above the line, or fake sidecore's prompt.
//!
//! What passes:
//!
//! - printable characters in UTF-8, without those that turn the direction of writing;
//! - BEL, BS, HT, LF, CR;
//! - `CSI m` (colours): attributes, and the colour of the letters. No background and no reverse video. sidecore's prompt is
//!   in reverse video, so no guest can write one;
//! - `CSI C D G` (cursor within the line), `CSI K` (erase in the line), `CSI @ P X` (insert, delete, erase characters), and
//!   `CSI J` from the cursor to the end of the screen.
//!
//! Everything else is dropped: other control characters, C1 controls, DEL, strings (OSC, DCS, SOS, PM, APC) with all they
//! contain, questions to the terminal, private modes, character sets, the alternate screen. A byte that is no UTF-8 becomes
//! U+FFFD. (ECMA-48, chapters 5.4 and 8.3; xterm's control sequences.)

use alloc::vec::Vec;

use crate::no_memory::NoMemory;

/// Most bytes of a control sequence between its CSI and its last byte. A longer one is dropped.
const PARAMETERS: usize = 32;
/// Most bytes of a string that are swallowed. Then text is text again, so that a guest's output cannot vanish for good.
const STRING: usize = 4096;
/// What stands for a byte that is no text.
const REPLACEMENT: &str = "\u{fffd}";

/// Where the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// In a character of several bytes.
    Character,
    /// ESC.
    Escape,
    /// ESC and intermediate bytes: a character set and the like.
    Designation,
    /// CSI.
    Sequence,
    /// A sequence that is dropped.
    BadSequence,
    /// A string: bytes so far.
    InString(usize),
}

/// The filter of a terminal. Its memory is bounded.
#[derive(Debug)]
pub struct TerminalFilter {
    state: State,
    /// The bytes of an unfinished sequence or character.
    held: heapless::Vec<u8, PARAMETERS>,
}

impl Default for TerminalFilter {
    fn default() -> Self {
        Self::new()
    }
}

impl TerminalFilter {
    /// Makes a filter at the beginning of text.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: State::Text, held: heapless::Vec::new() }
    }

    /// Filters bytes and adds what passes to `out`: at most four times as many bytes, and 40 more.
    ///
    /// # Errors
    /// There is no memory for so many bytes. Then none was looked at.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), NoMemory> {
        out.try_reserve(bytes.len().saturating_mul(4).saturating_add(40)).map_err(|_| NoMemory)?;
        bytes.iter().for_each(|&byte| self.take(byte, out));
        Ok(())
    }

    fn take(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.state, byte) {
            (State::Character, 0x80..=0xbf) => self.continue_character(byte, out),
            (State::Character, _) => {
                out.extend_from_slice(REPLACEMENT.as_bytes());
                self.state = State::Text;
                self.take(byte, out);
            }
            // ESC ends whatever was there and begins anew; CAN and SUB end it.
            (_, 0x1b) => self.state = State::Escape,
            (State::Text, _) => self.text(byte, out),
            (_, 0x18 | 0x1a) => self.state = State::Text,
            (State::InString(_), 0x07) => self.state = State::Text,
            (State::InString(length), _) => {
                self.state = if length < STRING { State::InString(length.saturating_add(1)) } else { State::Text };
            }
            // A terminal carries out controls in the middle of a sequence.
            (_, 0x00..=0x1f) => self.text(byte, out),
            (State::Escape, b'[') => {
                self.held.clear();
                self.state = State::Sequence;
            }
            (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => self.state = State::InString(0),
            (State::Escape | State::Designation, 0x20..=0x2f) => self.state = State::Designation,
            (State::Escape | State::Designation, _) => self.state = State::Text,
            (State::Sequence, b'0'..=b'9' | b';' | b':') => {
                if self.held.push(byte).is_err() {
                    self.state = State::BadSequence;
                }
            }
            (State::Sequence, 0x40..=0x7e) => {
                self.finish_sequence(byte, out);
                self.state = State::Text;
            }
            (State::BadSequence, 0x40..=0x7e) => self.state = State::Text,
            // Private and intermediate bytes. DEL and bytes of UTF-8 do not belong into a sequence.
            (State::Sequence | State::BadSequence, _) => self.state = State::BadSequence,
        }
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            0x20..=0x7e | 0x07..=0x0a | b'\r' => out.push(byte),
            0xc2..=0xf4 => {
                self.held.clear();
                // The buffer is empty.
                let _ = self.held.push(byte);
                self.state = State::Character;
            }
            0x80..=0xff => out.extend_from_slice(REPLACEMENT.as_bytes()),
            0x00..=0x1f | 0x7f => {}
        }
    }

    fn continue_character(&mut self, byte: u8, out: &mut Vec<u8>) {
        // A character has four bytes at most.
        let _ = self.held.push(byte);
        match core::str::from_utf8(&self.held) {
            Ok(text) => {
                let shown = if text.chars().any(is_deceptive) { REPLACEMENT } else { text };
                out.extend_from_slice(shown.as_bytes());
            }
            Err(error) if error.error_len().is_none() => return,
            Err(_) => out.extend_from_slice(REPLACEMENT.as_bytes()),
        }
        self.state = State::Text;
    }

    fn finish_sequence(&self, last: u8, out: &mut Vec<u8>) {
        let parameters = core::str::from_utf8(&self.held).unwrap_or_default();
        let passes = match last {
            b'm' => return attributes(parameters, out),
            b'C' | b'D' | b'G' | b'@' | b'P' | b'X' => is_number(parameters),
            b'K' => matches!(parameters, "" | "0" | "1" | "2"),
            b'J' => matches!(parameters, "" | "0"),
            _ => false,
        };
        if passes {
            sequence(parameters, last, out);
        }
    }
}

/// Whether a character is a C1 control, a separator of lines, or turns the direction of writing.
pub(crate) const fn is_deceptive(character: char) -> bool {
    matches!(character, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_number(text: &str) -> bool {
    text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn sequence(parameters: &str, last: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\x1b[");
    out.extend_from_slice(parameters.as_bytes());
    out.push(last);
}

/// Passes on the attributes that are allowed, each in a sequence of its own.
fn attributes(parameters: &str, out: &mut Vec<u8>) {
    let mut left = parameters.split(';');
    while let Some(one) = left.next() {
        match one {
            "38" | "48" => {
                // A colour by number (5) or by its parts (2).
                let kind = left.next().unwrap_or_default();
                let count = match kind {
                    "5" => 1,
                    "2" => 3,
                    _ => return,
                };
                let mut colour = heapless::String::<PARAMETERS>::new();
                // It is a part of the parameters, so there is room.
                let _ = colour.push_str(one);
                for part in core::iter::once(kind).chain(left.by_ref().take(count)) {
                    if !is_number(part) {
                        return;
                    }
                    let _ = colour.push(';');
                    let _ = colour.push_str(part);
                }
                if one == "38" {
                    sequence(&colour, b'm', out);
                }
            }
            "" | "0" | "00" | "1" | "01" | "2" | "3" | "4" | "22" | "23" | "24" | "39" => sequence(one, b'm', out),
            _ => {
                let number: u8 = one.parse().unwrap_or(0);
                if is_number(one) && matches!(number, 30..=37 | 90..=97) {
                    sequence(one, b'm', out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
