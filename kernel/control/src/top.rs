//! `top`: a live picture of the machine on the operator's terminal, 80x24. It takes keys and readings of the counters, and sends
//! what changes in the picture, so that a line of 115,200 baud bears it.
//!
//! ```text
//!  keys ──────▶ Top ──▶ draw.rs ──▶ frame.rs ──▶ what differs from the picture before
//!  Counters ─▶  │         ▲
//!               └─ rates.rs: two readings
//! ```

mod draw;
mod frame;
mod rates;
#[cfg(test)]
mod tests;

use core::fmt::{self, Write};

use self::frame::Frame;
use self::rates::Rates;
use crate::Counters;
use crate::no_memory::NoMemory;

/// Takes the other screen of the terminal, hides the cursor, and clears (xterm's control sequences; ECMA-48 8.3.39).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[m\x1b[2J";
/// Shows the cursor, and gives the first screen back as it was.
pub const LEAVE_TOP: &str = "\x1b[m\x1b[?25h\x1b[?1049l";

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterKey {
    /// Nothing.
    Nothing,
    /// Call [`Top::refresh`].
    Refresh,
    /// Write [`LEAVE_TOP`], and drop the [`Top`].
    Leave,
}

/// By what the guests are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Exits,
    Host,
    Frames,
    Disk,
    Name,
}

impl Sort {
    const fn name(self) -> &'static str {
        match self {
            Self::Exits => "exits",
            Self::Host => "host time",
            Self::Frames => "frames",
            Self::Disk => "disk",
            Self::Name => "name",
        }
    }
}

/// What the picture is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Machine,
    Guest,
}

/// Where the input is in the sequence of a cursor key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    Sequence,
}

/// The live picture.
#[derive(Debug)]
pub struct Top {
    frame: Frame,
    /// The last two readings.
    before: Option<Counters>,
    now: Option<Counters>,
    view: View,
    sort: Sort,
    frozen: bool,
    /// The number of the chosen guest.
    selected: usize,
    escape: Escape,
}

impl Top {
    /// Begins, and clears the terminal.
    ///
    /// # Errors
    /// There is no memory for the picture.
    pub fn new(out: &mut dyn Write) -> Result<Self, NoMemory> {
        let frame = Frame::new()?;
        // What is lost here is sent again by Ctrl-L.
        let _ = out.write_str(ENTER);
        Ok(Self {
            frame,
            before: None,
            now: None,
            view: View::Machine,
            sort: Sort::Exits,
            frozen: false,
            selected: 0,
            escape: Escape::None,
        })
    }

    /// Takes a reading of the counters. Call [`Top::refresh`] afterwards. Nothing changes while the picture is frozen.
    pub fn read(&mut self, counters: Counters) {
        if !self.frozen {
            self.before = self.now.replace(counters);
        }
    }

    /// Sends what has changed in the picture.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn refresh(&mut self, out: &mut dyn Write) -> fmt::Result {
        self.draw();
        self.frame.send(out)
    }

    /// Takes a byte that was typed.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn feed(&mut self, byte: u8, out: &mut dyn Write) -> Result<AfterKey, fmt::Error> {
        match (self.escape, byte) {
            (Escape::None, 0x1b) => self.escape = Escape::Begun,
            (Escape::Begun, b'[' | b'O') => self.escape = Escape::Sequence,
            (Escape::Sequence, 0x20..=0x3f) => {}
            (Escape::Sequence, key) => {
                self.escape = Escape::None;
                return Ok(match key {
                    b'A' => self.choose(false),
                    b'B' => self.choose(true),
                    _ => AfterKey::Nothing,
                });
            }
            (_, byte) => {
                self.escape = Escape::None;
                return self.key(byte, out);
            }
        }
        Ok(AfterKey::Nothing)
    }

    fn key(&mut self, key: u8, out: &mut dyn Write) -> Result<AfterKey, fmt::Error> {
        match key {
            b'q' | 0x03 => return Ok(AfterKey::Leave),
            b'j' => return Ok(self.choose(true)),
            b'k' => return Ok(self.choose(false)),
            b'\r' | b'\n' => self.view = if self.view == View::Machine { View::Guest } else { View::Machine },
            b'e' => self.sort = Sort::Exits,
            b'h' => self.sort = Sort::Host,
            b'f' => self.sort = Sort::Frames,
            b'd' => self.sort = Sort::Disk,
            b'n' => self.sort = Sort::Name,
            b'z' | b' ' => self.frozen = !self.frozen,
            // Ctrl-L: the terminal shows something else.
            0x0c => {
                out.write_str(ENTER)?;
                self.frame.cleared();
            }
            _ => return Ok(AfterKey::Nothing),
        }
        Ok(AfterKey::Refresh)
    }

    /// Chooses the next or the previous guest in the order of the picture.
    fn choose(&mut self, next: bool) -> AfterKey {
        let Some(now) = &self.now else { return AfterKey::Nothing };
        let order = draw::sorted(&Rates::new(self.before.as_ref(), now), self.sort);
        let place = order.iter().position(|guest| guest.number == self.selected).unwrap_or(0);
        let place = if next { place.saturating_add(1) } else { place.saturating_sub(1) };
        match order.get(place) {
            Some(guest) => self.selected = guest.number,
            None => return AfterKey::Nothing,
        }
        AfterKey::Refresh
    }
}
