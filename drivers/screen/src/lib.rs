//! Text on the machine's screen, as a terminal shows it: VGA text mode, or a linear framebuffer with 24 or 32 bits a pixel.
//!
//! ```text
//!  bytes ──▶ grid: cells in memory, cursor, scrolling ──▶ draw: cells that changed, up to a budget ──▶ Memory: the screen
//! ```
//!
//! The screen's memory is slow and is only written. What is there is known from a copy: `drawn`. A cell that has not changed
//! is not written again, also when the text has scrolled.
//!
//! The bytes are hostile: a guest's console may be among them. All indices are checked and every loop ends. A cell shows
//! ASCII; any other character is a `?`.
//!
//! VGA text: IBM VGA, each cell a character and an attribute. Framebuffer: multiboot2 specification 3.6.12. Control
//! sequences: ECMA-48 8.3, read by the crate `vte`. The glyphs are Noto Sans Mono's, from the crate
//! `noto-sans-mono-bitmap`.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod grid;
mod memory;
mod pixels;

pub use grid::{Cell, Cells, MOST_CELLS, MOST_COLUMNS, MOST_ROWS};
pub use memory::Memory;
pub use pixels::{Channel, GLYPH_HEIGHT, GLYPH_WIDTH, Pixels, Unusable};

use grid::Grid;

/// How the screen's memory is read by the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VGA text: two bytes a cell, character and attribute, row after row.
    Text {
        /// Characters in a row.
        columns: usize,
        /// Rows.
        rows: usize,
    },
    /// A linear framebuffer.
    Pixels(Pixels),
}

impl Kind {
    /// Columns and rows of characters, within the largest grid.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let (columns, rows) = match self {
            Self::Text { columns, rows } => (*columns, *rows),
            Self::Pixels(pixels) => pixels.cells(),
        };
        (columns.min(MOST_COLUMNS), rows.min(MOST_ROWS))
    }

    /// Bytes of the screen's memory.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Text { columns, rows } => columns.saturating_mul(*rows).saturating_mul(2),
            Self::Pixels(pixels) => pixels.bytes(),
        }
    }

    /// Cells to draw between two looks at the clock, some ten microseconds: a store to VGA's memory takes about a microsecond on
    /// a server's management controller, one to an uncached framebuffer a tenth of it. A glyph is 64 stores.
    #[must_use]
    pub const fn cells_at_once(&self) -> usize {
        match self {
            Self::Text { .. } => 8,
            Self::Pixels(_) => 2,
        }
    }
}

/// A screen.
pub struct Screen<'a, M> {
    kind: Kind,
    memory: M,
    /// 64 bytes of an operating system command are kept: none has an effect.
    parser: vte::Parser<64>,
    grid: Grid<'a>,
    /// What the screen shows.
    drawn: &'a mut Cells,
    /// The cell that shows the cursor.
    drawn_cursor: Option<usize>,
}

impl<'a, M: Memory> Screen<'a, M> {
    /// Makes an empty screen, and clears the memory of a framebuffer. `None`: it has no room for a character.
    #[must_use]
    pub fn new(kind: Kind, memory: M, cells: &'a mut Cells, drawn: &'a mut Cells) -> Option<Self> {
        let (columns, rows) = kind.size();
        let grid = Grid::new(columns, rows, cells)?;
        drawn.fill(Cell::UNKNOWN);
        let mut screen = Self { kind, memory, parser: vte::Parser::default(), grid, drawn, drawn_cursor: None };
        if let Kind::Pixels(pixels) = screen.kind {
            pixels.clear(&mut screen.memory);
        }
        Some(screen)
    }

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Takes text with control sequences, as a terminal would. Nothing is drawn.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.parser.advance(&mut self.grid, bytes);
    }

    /// Forgets a control sequence that has only begun. After a panic in the middle of one, text is text again.
    pub fn begin_anew(&mut self) {
        self.parser = vte::Parser::default();
    }

    /// Draws up to `most` cells that differ from what the screen shows, the last rows first, because the newest text is there.
    /// Returns whether the screen shows everything.
    pub fn draw(&mut self, most: usize) -> bool {
        let cursor = self.grid.cursor();
        if cursor != self.drawn_cursor {
            for place in [cursor, self.drawn_cursor].into_iter().flatten() {
                self.grid.touch(place);
            }
            self.drawn_cursor = cursor;
        }
        let mut left = most;
        while let Some((row, range)) = self.grid.changed_row() {
            for (column, place) in range.enumerate() {
                let Some(drawn) = self.drawn.get_mut(place) else { break };
                let cell = self.grid.cell(place).reversed_if(cursor == Some(place));
                if *drawn == cell {
                    continue;
                }
                if left == 0 {
                    return false;
                }
                left = left.saturating_sub(1);
                *drawn = cell;
                match &self.kind {
                    Kind::Text { .. } => self.memory.write(place.saturating_mul(2), &cell.vga()),
                    Kind::Pixels(pixels) => pixels.draw(&mut self.memory, column, row, cell),
                }
            }
            self.grid.row_is_drawn();
        }
        true
    }
}

#[cfg(test)]
mod tests;
