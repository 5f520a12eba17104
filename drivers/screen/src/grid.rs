//! The cells of a terminal, its cursor, and the control sequences that the operator's console prints: ECMA-48's SGR (bold and
//! reverse), EL, ED, CUP, CUU to CUB, CHA, VPA, and DEC's private modes 25 (cursor) and 1049 (another screen: here it is
//! cleared). Anything else has no effect.

use core::ops::Range;

use vte::{Params, Perform};

/// Most columns. A screen of 1,920 pixels has 240.
pub const MOST_COLUMNS: usize = 240;
/// Most rows. A screen of 1,200 pixels has 75.
pub const MOST_ROWS: usize = 75;
/// Cells of the largest grid.
pub const MOST_CELLS: usize = MOST_COLUMNS * MOST_ROWS;

/// The memory of a grid.
pub type Cells = [Cell; MOST_CELLS];

/// Columns between two tabulator stops.
const TAB: usize = 8;

/// A character with its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Printable ASCII.
    pub byte: u8,
    style: Style,
}

/// How a character looks. At most one of bold and reverse is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Style(u8);

impl Style {
    const PLAIN: Self = Self(0);
    const BOLD: u8 = 1;
    const REVERSE: u8 = 2;
}

impl Cell {
    /// A space.
    pub const BLANK: Self = Self { byte: b' ', style: Style::PLAIN };
    /// No character at all: it differs from all that is shown.
    pub const UNKNOWN: Self = Self { byte: 0, style: Style::PLAIN };

    /// Whether dark is on light.
    #[must_use]
    pub const fn is_reversed(self) -> bool {
        self.style.0 & Style::REVERSE != 0
    }

    /// Whether it is brighter than others.
    #[must_use]
    pub const fn is_bold(self) -> bool {
        self.style.0 & Style::BOLD != 0
    }

    /// The same, reversed once more if this is true.
    pub(crate) const fn reversed_if(self, turn: bool) -> Self {
        let style = if turn { Style(self.style.0 ^ Style::REVERSE) } else { self.style };
        Self { style, ..self }
    }

    /// Character and attribute of VGA's text mode: light grey on black, white, or black on light grey.
    pub(crate) const fn vga(self) -> [u8; 2] {
        let attribute = match (self.is_reversed(), self.is_bold()) {
            (true, _) => 0x70,
            (false, true) => 0x0f,
            (false, false) => 0x07,
        };
        [self.byte, attribute]
    }
}

/// The cells, and where the next character goes.
pub(crate) struct Grid<'a> {
    columns: usize,
    rows: usize,
    cells: &'a mut Cells,
    /// The cursor's column. It is `columns` behind the last character of a row: the next one begins another row.
    column: usize,
    row: usize,
    style: Style,
    cursor_is_shown: bool,
    /// Rows that may have changed since they were drawn.
    changed: Range<usize>,
}

impl<'a> Grid<'a> {
    /// An empty grid. `None`: it has no cell, or more than there is memory for.
    pub(crate) fn new(columns: usize, rows: usize, cells: &'a mut Cells) -> Option<Self> {
        let count = columns.checked_mul(rows)?;
        if count == 0 || count > cells.len() {
            return None;
        }
        cells.fill(Cell::BLANK);
        let (style, changed) = (Style::PLAIN, 0..rows);
        Some(Self { columns, rows, cells, column: 0, row: 0, style, cursor_is_shown: true, changed })
    }

    /// The place of the cursor. `None`: it is hidden.
    pub(crate) fn cursor(&self) -> Option<usize> {
        let place = self.place(self.row).saturating_add(self.column.min(self.columns.saturating_sub(1)));
        self.cursor_is_shown.then_some(place)
    }

    pub(crate) fn cell(&self, place: usize) -> Cell {
        self.cells.get(place).copied().unwrap_or(Cell::BLANK)
    }

    /// The last row that may have to be drawn, and the places of its cells.
    pub(crate) fn changed_row(&self) -> Option<(usize, Range<usize>)> {
        let row = self.changed.clone().next_back()?;
        let place = self.place(row);
        Some((row, place..place.saturating_add(self.columns)))
    }

    /// The row of [`changed_row`](Self::changed_row) is drawn.
    pub(crate) fn row_is_drawn(&mut self) {
        let _ = self.changed.next_back();
    }

    /// The cell at this place may have to be drawn.
    pub(crate) fn touch(&mut self, place: usize) {
        let row = place.checked_div(self.columns).unwrap_or(0);
        self.touch_rows(row..row.saturating_add(1));
    }

    fn touch_rows(&mut self, rows: Range<usize>) {
        self.changed = if self.changed.is_empty() {
            rows
        } else {
            self.changed.start.min(rows.start)..self.changed.end.max(rows.end)
        };
    }

    /// The place of a row's first cell.
    fn place(&self, row: usize) -> usize {
        row.saturating_mul(self.columns)
    }

    fn line_feed(&mut self) {
        if self.row.saturating_add(1) < self.rows {
            self.row = self.row.saturating_add(1);
            return;
        }
        let end = self.place(self.rows);
        if let Some(cells) = self.cells.get_mut(..end)
            && self.columns <= cells.len()
        {
            cells.copy_within(self.columns.., 0);
        }
        self.erase(self.place(self.rows.saturating_sub(1))..end);
        self.touch_rows(0..self.rows);
    }

    /// Empties the cells at these places.
    fn erase(&mut self, places: Range<usize>) {
        let (first, last) = (places.start, places.end.saturating_sub(1));
        if let Some(cells) = self.cells.get_mut(places) {
            cells.fill(Cell::BLANK);
            self.touch(first);
            self.touch(last);
        }
    }

    fn go(&mut self, row: usize, column: usize) {
        self.row = row.min(self.rows.saturating_sub(1));
        self.column = column.min(self.columns.saturating_sub(1));
    }

    fn attributes(&mut self, params: &Params) {
        let mut params = params.iter();
        while let Some(param) = params.next() {
            let Some(&number) = param.first() else { continue };
            let style = &mut self.style.0;
            match number {
                0 => *style = Style::PLAIN.0,
                1 => *style |= Style::BOLD,
                7 => *style |= Style::REVERSE,
                22 => *style &= !Style::BOLD,
                27 => *style &= !Style::REVERSE,
                // A colour by number (5) or by its parts (2): what follows is no attribute.
                38 | 48 if param.len() == 1 => {
                    let skipped = match params.next().and_then(|kind| kind.first()) {
                        Some(5) => 1,
                        Some(2) => 3,
                        _ => 0,
                    };
                    for _ in 0..skipped {
                        let _ = params.next();
                    }
                }
                _ => {}
            }
        }
    }
}

impl Perform for Grid<'_> {
    fn print(&mut self, character: char) {
        if self.column >= self.columns {
            self.column = 0;
            self.line_feed();
        }
        let byte = u8::try_from(character).ok().filter(|byte| (b' '..=b'~').contains(byte)).unwrap_or(b'?');
        let place = self.place(self.row).saturating_add(self.column);
        if let Some(cell) = self.cells.get_mut(place) {
            *cell = Cell { byte, style: self.style };
            self.touch(place);
        }
        self.column = self.column.saturating_add(1);
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            b'\n' | 0x0b | 0x0c => self.line_feed(),
            b'\r' => self.column = 0,
            0x08 => self.column = self.column.min(self.columns).saturating_sub(1),
            b'\t' => {
                let next = (self.column / TAB).saturating_add(1).saturating_mul(TAB);
                self.column = next.min(self.columns.saturating_sub(1));
            }
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignored: bool, action: char) {
        if ignored {
            return;
        }
        let number = |n: usize| params.iter().nth(n).and_then(|param| param.first()).map_or(0, |n| usize::from(*n));
        // A number that is left out or 0 counts as 1.
        let (first, second) = (number(0).max(1), number(1).max(1));
        match (intermediates, action) {
            ([], 'm') => self.attributes(params),
            ([], 'A') => self.go(self.row.saturating_sub(first), self.column),
            ([], 'B') => self.go(self.row.saturating_add(first), self.column),
            ([], 'C') => self.go(self.row, self.column.saturating_add(first)),
            ([], 'D') => self.go(self.row, self.column.saturating_sub(first)),
            ([], 'G') => self.go(self.row, first.saturating_sub(1)),
            ([], 'd') => self.go(first.saturating_sub(1), self.column),
            ([], 'H' | 'f') => self.go(first.saturating_sub(1), second.saturating_sub(1)),
            ([], 'K' | 'J') => {
                let here = self.place(self.row).saturating_add(self.column.min(self.columns.saturating_sub(1)));
                let (start, end) = match action {
                    'K' => (self.place(self.row), self.place(self.row.saturating_add(1))),
                    _ => (0, self.place(self.rows)),
                };
                match number(0) {
                    0 => self.erase(here..end),
                    1 => self.erase(start..here.saturating_add(1)),
                    _ => self.erase(start..end),
                }
            }
            ([b'?'], 'h' | 'l') => {
                let on = action == 'h';
                for param in params.iter() {
                    match param.first() {
                        Some(25) => self.cursor_is_shown = on,
                        Some(1049) => {
                            self.erase(0..self.place(self.rows));
                            self.go(0, 0);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}
