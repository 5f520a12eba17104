//! Draws the program's screen. It is pure: a state and a person's choices become a buffer of cells.
//!
//! ```text
//! sidecore-console  socket /tmp/com2                                      live
//!  1 machine  2 engine  3 guest  4 port  5 disk  6 log              ? help
//! facts
//! main table, scrolled
//! further tables, as far as there is room
//! filter, or keys
//! ```

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr as _;

use crate::sheet::text::{Layout, cut, layout, wrap};
use crate::sheet::{Sheet, Table, Tone};
use crate::state::{Freshness, Link, State};
use crate::ui::Ui;
use crate::views::View;

/// Most rows that further tables may take from the main one.
const MORE: usize = 9;

/// Rows at the bottom for the filter or the keys.
const FOOT: u16 = 1;

/// The keys, for the help.
const KEYS: [(&str, &str); 14] = [
    ("1 to 6, Tab", "machine, engine, guest, port, disk, log"),
    ("arrows, PgUp, PgDn, Home, End", "choose a row"),
    ("Enter", "details of the chosen row"),
    ("Esc", "clears the filter, or goes back"),
    ("s", "sort by the next column"),
    ("r", "sort the other way round"),
    ("/", "only rows with a text: Enter keeps, Esc clears"),
    ("f, Space", "freeze what is shown, or go on"),
    ("w", "the engines' profiles on or off (batch sizes)"),
    ("t", "trace of exits on or off (details of a guest)"),
    ("c", "capture of the chosen port on or off (ports)"),
    ("?", "this list"),
    ("q, Ctrl-C", "quit"),
    ("- in a table", "not known: no two readings to compare"),
];

/// What stands in the head.
#[derive(Clone, Debug)]
pub struct Head {
    /// To what the program is connected.
    pub source: String,
    /// Whether colours are shown.
    pub colours: bool,
    /// Whether it is recorded.
    pub recording: bool,
}

/// Draws everything. Adapts the first row that is shown, so that the chosen one is on the screen.
pub fn draw(frame: &mut Frame<'_>, head: &Head, ui: &mut Ui, state: &State) {
    let area = frame.area();
    draw_into(frame.buffer_mut(), area, head, ui, state);
}

/// The screen as text, a line a row. It is for programs that look at it: tests and fuzz targets.
#[must_use]
pub fn rows(width: u16, height: u16, head: &Head, ui: &mut Ui, state: &State) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw_into(&mut buffer, area, head, ui, state);
    let row = |y: u16| -> String {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y)));
        cells.map(|cell| cell.symbol()).collect()
    };
    (0..height).map(row).collect()
}

/// A writer of lines into a buffer.
struct Page<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    next: u16,
    colours: bool,
}

impl Page<'_> {
    fn left(&self) -> usize {
        usize::from(self.area.height.saturating_sub(self.next).saturating_sub(FOOT))
    }

    /// Writes the next line, unless only the foot is left.
    fn line(&mut self, text: &str, style: Style) {
        if self.left() > 0 {
            self.put(self.next, text, style);
            self.next = self.next.saturating_add(1);
        }
    }

    fn put(&mut self, row: u16, text: &str, style: Style) {
        let width = usize::from(self.area.width);
        if row >= self.area.height {
            return;
        }
        let mut text = cut(text, width);
        // The style goes on to the end of the line only where it is a bar.
        if style.add_modifier.contains(Modifier::REVERSED) {
            text.extend(std::iter::repeat_n(' ', width.saturating_sub(text.width())));
        }
        self.buffer.set_stringn(self.area.x, self.area.y.saturating_add(row), text, width, style);
    }

    fn tone(&self, tone: Tone) -> Style {
        let style = Style::new();
        match (tone, self.colours) {
            (Tone::Plain, _) => style,
            (Tone::Quiet, true) => style.fg(Color::DarkGray),
            (Tone::Quiet, false) => style.add_modifier(Modifier::DIM),
            (Tone::Warning, true) => style.fg(Color::Yellow),
            (Tone::Bad, true) => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            (Tone::Warning | Tone::Bad, false) => style.add_modifier(Modifier::BOLD),
        }
    }
}

/// Draws everything into a part of a buffer.
fn draw_into(buffer: &mut Buffer, area: Rect, head: &Head, ui: &mut Ui, state: &State) {
    let mut page = Page { buffer, area, next: 0, colours: head.colours };
    let (status, tone) = status(ui, state);
    let left = format!("sidecore-console  {}{}", head.source, if head.recording { "  recording" } else { "" });
    let bar = page.tone(tone).add_modifier(Modifier::REVERSED);
    page.line(&ends(&left, &status, usize::from(area.width)), bar);
    page.line(&tabs(ui, usize::from(area.width)), Style::new());
    if ui.help {
        page.line("", Style::new());
        for (keys, what) in KEYS {
            page.line(&format!(" {keys:<30} {what}"), Style::new());
        }
        page.put(area.height.saturating_sub(FOOT), " any key goes back", Style::new());
        return;
    }
    let (sheet, hidden) = ui.sheet_and_hidden(state);
    let foot = foot(ui, hidden);
    for fact in &sheet.facts {
        for part in wrap(fact, usize::from(area.width)) {
            page.line(&part, Style::new());
        }
    }
    tables(&mut page, ui, &sheet);
    page.put(area.height.saturating_sub(FOOT), &foot, Style::new());
}

/// The main table, of which at least three rows are shown, and the further ones.
fn tables(page: &mut Page<'_>, ui: &mut Ui, sheet: &Sheet) {
    let width = usize::from(page.area.width);
    let more: usize =
        sheet.more.iter().filter(|table| !table.rows.is_empty()).map(|table| table.rows.len().saturating_add(3)).sum();
    // Title and titles of the columns.
    let room = page.left().saturating_sub(2);
    let for_main = room.saturating_sub(more.min(MORE)).max(room.min(3)).max(room.saturating_sub(more));
    let rows = for_main.min(sheet.main.rows.len());
    ui.page = rows;
    let chosen = ui.chosen_row(sheet);
    ui.top = scrolled(ui.top, chosen.unwrap_or(0), rows, sheet.main.rows.len());
    let title = match sheet.main.rows.len() {
        all if all > rows => {
            format!("{} ({} to {} of {all})", sheet.main.title, ui.top.saturating_add(1), ui.top.saturating_add(rows))
        }
        _ => sheet.main.title.clone(),
    };
    page.line(&title, Style::new().add_modifier(Modifier::BOLD));
    let columns = layout(&sheet.main, width);
    page.line(&columns.head(&sheet.main, ui.sorted), Style::new().add_modifier(Modifier::UNDERLINED));
    body(page, &columns, &sheet.main, ui.top, rows, chosen);
    for table in sheet.more.iter().filter(|table| !table.rows.is_empty()) {
        if page.left() < 4 {
            return;
        }
        page.line("", Style::new());
        page.line(&table.title, Style::new().add_modifier(Modifier::BOLD));
        let columns = layout(table, width);
        page.line(&columns.head(table, None), Style::new().add_modifier(Modifier::UNDERLINED));
        let rows = page.left();
        body(page, &columns, table, 0, rows, None);
    }
}

fn body(page: &mut Page<'_>, columns: &Layout, table: &Table, top: usize, rows: usize, chosen: Option<usize>) {
    for (n, row) in table.rows.iter().enumerate().skip(top).take(rows) {
        let style = page.tone(row.tone);
        let style = if chosen == Some(n) { style.add_modifier(Modifier::REVERSED) } else { style };
        page.line(&columns.row(table, row), style);
    }
}

/// The first row on the screen, moved as little as needed for the chosen one to be there.
const fn scrolled(top: usize, chosen: usize, rows: usize, all: usize) -> usize {
    let lowest = chosen.saturating_add(1).saturating_sub(rows);
    let top = if top < lowest { lowest } else { top };
    let top = if top > chosen { chosen } else { top };
    let last = all.saturating_sub(rows);
    if top > last { last } else { top }
}

fn status(ui: &Ui, state: &State) -> (String, Tone) {
    let (text, tone) = match (state.freshness(), &state.link) {
        (_, Link::Down { why, again }) => {
            let left = again.saturating_sub(state.clock).as_secs_f64().ceil();
            (format!("OLD, no connection ({}), again in {left} s", cut(why, 24)), Tone::Bad)
        }
        (Freshness::Nothing, Link::Opening) => ("connecting".into(), Tone::Plain),
        (Freshness::Nothing, _) => ("connected, no counters yet".into(), Tone::Plain),
        (Freshness::Live, _) => ("live".into(), Tone::Plain),
        (Freshness::Old(age), _) => (format!("OLD, {} s", age.as_secs()), Tone::Warning),
        (Freshness::Ended, _) => (format!("end of the recording, {:.1} s", state.clock.as_secs_f64()), Tone::Plain),
    };
    if ui.frozen.is_some() { (format!("FROZEN ({text})"), Tone::Warning) } else { (text, tone) }
}

/// A line with a text at each end. The left one is cut.
fn ends(left: &str, right: &str, width: usize) -> String {
    let right = cut(right, width);
    let room = width.saturating_sub(right.width()).saturating_sub(1);
    let left = cut(left, room);
    let gap = width.saturating_sub(left.width()).saturating_sub(right.width());
    format!("{left}{}{right}", " ".repeat(gap))
}

fn tabs(ui: &Ui, width: usize) -> String {
    let mut line = String::new();
    for (n, view) in View::ALL.iter().enumerate() {
        let number = n.saturating_add(1);
        let name = view.name();
        line.push_str(&if *view == ui.view { format!("[{number} {name}]") } else { format!(" {number} {name} ") });
    }
    ends(&line, "? help  q quit", width)
}

fn foot(ui: &Ui, hidden: usize) -> String {
    let hidden = if hidden > 0 { format!(" ({hidden} hidden)") } else { String::new() };
    if ui.typing {
        return format!("/{}_{hidden}", ui.filter);
    }
    if !ui.filter.is_empty() {
        return format!("/{}{hidden}  Esc clears the filter", ui.filter);
    }
    let enter = if ui.detail.is_some() { "Esc back" } else { "Enter details" };
    format!("{enter}  s sort  r reverse  / filter  f freeze")
}

#[cfg(test)]
mod tests;
