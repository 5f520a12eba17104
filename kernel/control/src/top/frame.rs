//! The picture on a terminal of 80x24, in cells. What is sent is the difference to the picture before, as ECMA-48 control
//! sequences.

use alloc::vec::Vec;
use core::fmt::{self, Display, Write};
use core::mem;

use crate::fold::COLUMNS;
use crate::no_memory::NoMemory;
use crate::table::{cut, wide};

/// Lines of the picture.
pub const ROWS: usize = 24;
/// Cells that did not change and are sent again, rather than moving the cursor over them. Moving takes 6 to 8 bytes.
const OVER: usize = 6;
/// Blanks at the end of a line for which erasing is shorter.
const ERASE: usize = 3;

/// How a cell looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Reverse,
}

impl Style {
    /// Selects it (ECMA-48 8.3.117).
    const fn sequence(self) -> &'static str {
        match self {
            Self::Plain => "\x1b[m",
            Self::Bold => "\x1b[0;1m",
            Self::Reverse => "\x1b[0;7m",
        }
    }
}

/// A cell: a printable character of ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    character: u8,
    style: Style,
}

const BLANK: Cell = Cell { character: b' ', style: Style::Plain };

/// Where a text stands in its columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// The picture that the terminal shows, and the next one.
#[derive(Debug)]
pub(crate) struct Frame {
    shown: Vec<Cell>,
    next: Vec<Cell>,
}

impl Frame {
    /// Makes a blank picture.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> Result<Self, NoMemory> {
        let blank = || {
            let mut cells = Vec::new();
            cells.try_reserve_exact(ROWS * COLUMNS).map_err(|_| NoMemory)?;
            cells.resize(ROWS * COLUMNS, BLANK);
            Ok(cells)
        };
        Ok(Self { shown: blank()?, next: blank()? })
    }

    /// Begins the next picture. It is blank.
    pub fn begin(&mut self) {
        self.next.fill(BLANK);
    }

    /// Notes that the terminal has been cleared.
    pub fn cleared(&mut self) {
        self.shown.fill(BLANK);
    }

    /// Puts a value into `width` columns of the next picture. What is longer is cut and ends in `..`.
    pub fn put(&mut self, row: usize, column: usize, width: usize, align: Align, style: Style, value: impl Display) {
        struct Put<'a> {
            cells: &'a mut [Cell],
            style: Style,
        }
        impl Write for Put<'_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                for character in text.chars() {
                    let Some((cell, rest)) = mem::take(&mut self.cells).split_first_mut() else { return Ok(()) };
                    let byte = u8::try_from(character).ok().filter(|byte| (b' '..=b'~').contains(byte));
                    *cell = Cell { character: byte.unwrap_or(b'?'), style: self.style };
                    self.cells = rest;
                }
                Ok(())
            }
        }
        let width = width.min(COLUMNS.saturating_sub(column));
        let start = row.saturating_mul(COLUMNS).saturating_add(column);
        let Some(cells) = self.next.get_mut(start..start.saturating_add(width)) else { return };
        let mut put = Put { cells, style };
        let before = if align == Align::Right { width.saturating_sub(wide(&value)) } else { 0 };
        // Nothing here fails.
        let _ = write!(put, "{:before$}", "").and_then(|()| cut(width, &value, &mut put));
    }

    /// Gives a whole line of the next picture a style.
    pub fn style_row(&mut self, row: usize, style: Style) {
        let start = row.saturating_mul(COLUMNS);
        let cells = self.next.get_mut(start..start.saturating_add(COLUMNS)).unwrap_or_default();
        cells.iter_mut().for_each(|cell| cell.style = style);
    }

    /// Sends what differs between the two pictures. Then the next one is shown.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn send(&mut self, out: &mut dyn Write) -> fmt::Result {
        let mut style = None;
        let rows = self.shown.chunks(COLUMNS).zip(self.next.chunks(COLUMNS));
        for ((before, after), row) in rows.zip(1_usize..) {
            let used = COLUMNS.saturating_sub(after.iter().rev().take_while(|cell| **cell == BLANK).count());
            // The column of the cursor, if it is in this line.
            let mut cursor = None;
            let mut column = 0;
            while let Some(next) = differs(before, after, column) {
                column = next;
                if column >= used && COLUMNS.saturating_sub(used) >= ERASE {
                    go(row, column, cursor, after, &mut style, out)?;
                    select(Style::Plain, &mut style, out)?;
                    out.write_str("\x1b[K")?;
                    break;
                }
                let Some(cell) = after.get(column) else { break };
                go(row, column, cursor, after, &mut style, out)?;
                select(cell.style, &mut style, out)?;
                out.write_char(char::from(cell.character))?;
                column = column.saturating_add(1);
                // Behind the last column the cursor's place depends on the terminal.
                cursor = Some(column).filter(|column| *column < COLUMNS);
            }
        }
        if style.is_some_and(|style| style != Style::Plain) {
            out.write_str(Style::Plain.sequence())?;
        }
        mem::swap(&mut self.shown, &mut self.next);
        Ok(())
    }
}

/// The first column from `from` on where two lines differ.
fn differs(before: &[Cell], after: &[Cell], from: usize) -> Option<usize> {
    before.iter().zip(after).zip(0..).skip(from).find(|((a, b), _)| a != b).map(|(_, column)| column)
}

/// Moves the cursor in the line `row`, counted from 1.
fn go(
    row: usize,
    column: usize,
    cursor: Option<usize>,
    cells: &[Cell],
    style: &mut Option<Style>,
    out: &mut dyn Write,
) -> fmt::Result {
    if cursor == Some(column) {
        return Ok(());
    }
    if let Some(cursor) = cursor
        && let Some(between) = cells.get(cursor..column)
        && between.len() <= OVER
        && between.iter().all(|cell| Some(cell.style) == *style)
    {
        return between.iter().try_for_each(|cell| out.write_char(char::from(cell.character)));
    }
    write!(out, "\x1b[{row};{}H", column.saturating_add(1))
}

fn select(wanted: Style, style: &mut Option<Style>, out: &mut dyn Write) -> fmt::Result {
    if style.replace(wanted) == Some(wanted) { Ok(()) } else { out.write_str(wanted.sequence()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sends a picture to a terminal. Returns the bytes.
    fn send(frame: &mut Frame, terminal: &mut vt100::Parser) -> usize {
        let mut out = String::new();
        frame.send(&mut out).unwrap();
        terminal.process(out.as_bytes());
        out.len()
    }

    /// Whether the terminal shows the picture that was sent last.
    fn check(frame: &Frame, terminal: &vt100::Parser) {
        for (at, cell) in frame.shown.iter().enumerate() {
            let (row, column) = ((at / COLUMNS) as u16, (at % COLUMNS) as u16);
            let shown = terminal.screen().cell(row, column).unwrap();
            let text = if shown.has_contents() { shown.contents() } else { " " };
            assert_eq!(text, char::from(cell.character).to_string(), "{row}, {column}");
            assert_eq!((shown.inverse(), shown.bold()), (cell.style == Style::Reverse, cell.style == Style::Bold));
        }
    }

    #[test]
    fn the_same_picture_costs_nothing_and_a_cell_costs_little() {
        let (mut frame, mut terminal) = (Frame::new().unwrap(), crate::screen_of::terminal());
        for (text, bytes) in [("hello", 3 + 6 + 5), ("hello", 0), ("hullo", 6 + 3 + 1), ("hu", 6 + 3 + 3)] {
            frame.begin();
            frame.put(1, 10, 20, Align::Left, Style::Plain, text);
            assert!(send(&mut frame, &mut terminal) <= bytes + 2, "{text}");
            check(&frame, &terminal);
        }
    }

    #[test]
    fn a_value_is_aligned_and_cut() {
        let mut frame = Frame::new().unwrap();
        frame.put(0, 0, 5, Align::Right, Style::Plain, 42);
        frame.put(0, 6, 5, Align::Left, Style::Plain, "abcdefgh");
        frame.put(0, 78, 5, Align::Left, Style::Plain, "\x1b\u{e9}z");
        frame.put(99, 0, 5, Align::Left, Style::Plain, "out of the picture");
        let row: String = frame.next[..COLUMNS].iter().map(|cell| char::from(cell.character)).collect();
        assert_eq!(row, format!("   42 abc..{:67}..", ""));
    }

    proptest! {
        #[test]
        fn the_terminal_shows_each_picture(pictures in proptest::collection::vec(
            proptest::collection::vec((0..ROWS, 0..COLUMNS, 0_usize..30, "[ -~]{0,30}", 0_usize..3), 0..20), 1..4,
        )) {
            let (mut frame, mut terminal) = (Frame::new().unwrap(), crate::screen_of::terminal());
            for picture in pictures {
                frame.begin();
                for (row, column, width, text, style) in picture {
                    let style = [Style::Plain, Style::Bold, Style::Reverse][style];
                    let align = if width % 2 == 0 { Align::Left } else { Align::Right };
                    frame.put(row, column, width, align, style, text);
                }
                send(&mut frame, &mut terminal);
                check(&frame, &terminal);
                let mut out = String::new();
                frame.next.copy_from_slice(&frame.shown);
                frame.send(&mut out).unwrap();
                prop_assert_eq!(out, "");
            }
        }
    }
}
