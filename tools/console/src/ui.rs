//! What the person has chosen, and what each key does. Keys are values here; `app` reads them from the terminal.

use crate::clean::clean;
use crate::sheet::Sheet;
use crate::state::State;
use crate::views::View;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Ctrl-C.
    Interrupt,
    /// Tab.
    Next,
    /// Shift-Tab.
    Previous,
    /// Up.
    Up,
    /// Down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Enter.
    Enter,
    /// Esc.
    Escape,
    /// Backspace.
    Backspace,
}

/// What the program has to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but to draw.
    None,
    /// To end.
    Quit,
    /// To ask the machine to switch the engines' profiles on or off.
    Watch,
    /// To ask the machine to switch the trace of exits on or off.
    Trace,
    /// To begin or to end the capture of the chosen port, if one is chosen.
    Capture,
}

/// Most characters of a filter.
const FILTER: usize = 30;

/// What the person has chosen.
#[derive(Clone, Debug, Default)]
pub struct Ui {
    /// The view.
    pub view: View,
    /// The row whose details are shown.
    pub detail: Option<String>,
    /// Whether the keys are listed in place of a view.
    pub help: bool,
    /// The state that is shown while the view is frozen.
    pub frozen: Option<Box<State>>,
    /// The column by which the rows are sorted, and whether the other way round.
    pub sorted: Option<(usize, bool)>,
    /// Only rows that contain this are shown.
    pub filter: String,
    /// Whether keys go to the filter.
    pub typing: bool,
    /// The chosen row, by its id: it stays chosen where it moves. `None`: the first, or the last of the log.
    pub chosen: Option<String>,
    /// First row of the main table on the screen. `screen` keeps the chosen row on it.
    pub top: usize,
    /// Rows of the main table that the screen has room for, as it was drawn last.
    pub page: usize,
}

impl Ui {
    /// What is shown: the frozen state, or that of now.
    fn shown<'a>(&'a self, state: &'a State) -> &'a State {
        self.frozen.as_deref().unwrap_or(state)
    }

    /// The sheet to draw: filtered and sorted.
    #[must_use]
    pub fn sheet(&self, state: &State) -> Sheet {
        self.sheet_and_hidden(state).0
    }

    /// The same, and how many rows of its main table the filter hides.
    #[must_use]
    pub fn sheet_and_hidden(&self, state: &State) -> (Sheet, usize) {
        let mut sheet = self.view.sheet(self.shown(state), self.detail.as_deref());
        let all = sheet.main.rows.len();
        if !self.filter.is_empty() {
            sheet.main.filter(&self.filter);
            sheet.more.iter_mut().for_each(|table| table.filter(&self.filter));
        }
        if let Some((column, reverse)) = self.sorted {
            sheet.main.sort(column, reverse);
        }
        let hidden = all.saturating_sub(sheet.main.rows.len());
        (sheet, hidden)
    }

    /// The number of the chosen row, if there are rows.
    #[must_use]
    pub fn chosen_row(&self, sheet: &Sheet) -> Option<usize> {
        let last = sheet.main.rows.len().checked_sub(1)?;
        let found = self.chosen.as_ref().and_then(|id| sheet.main.rows.iter().position(|row| row.id == *id));
        Some(found.unwrap_or(if self.view == View::Log { last } else { 0 }))
    }

    /// Takes a key.
    pub fn key(&mut self, key: Key, state: &State) -> Action {
        if key == Key::Interrupt {
            return Action::Quit;
        }
        if self.typing {
            self.type_filter(key);
            return Action::None;
        }
        if self.help {
            self.help = false;
            return if key == Key::Char('q') { Action::Quit } else { Action::None };
        }
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('w') => return Action::Watch,
            Key::Char('t') => return Action::Trace,
            Key::Char('c') => return Action::Capture,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('/') => self.typing = true,
            Key::Char('f' | ' ') => {
                self.frozen = if self.frozen.is_some() { None } else { Some(Box::new(state.clone())) };
            }
            Key::Char('s') => self.sort_next(state),
            Key::Char('r') => self.sorted = self.sorted.map(|(column, reverse)| (column, !reverse)),
            Key::Char(digit @ '1'..='6') => {
                let number = digit.to_digit(10).and_then(|digit| digit.checked_sub(1)).unwrap_or(0);
                if let Some(view) = View::ALL.get(number as usize) {
                    self.go(*view);
                }
            }
            Key::Next => self.go(self.neighbour(1)),
            Key::Previous => self.go(self.neighbour(View::ALL.len().saturating_sub(1))),
            Key::Up | Key::Char('k') => self.step(state, |row, _| row.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.step(state, |row, _| row.saturating_add(1)),
            Key::PageUp => self.step(state, usize::saturating_sub),
            Key::PageDown => self.step(state, usize::saturating_add),
            Key::Home => self.step(state, |_, _| 0),
            Key::End => self.step(state, |_, _| usize::MAX),
            Key::Enter => self.enter(state),
            Key::Escape | Key::Backspace => self.back(),
            Key::Char(_) | Key::Interrupt => {}
        }
        Action::None
    }

    /// The name of the port that is chosen in the view of ports.
    #[must_use]
    pub fn port(&self, state: &State) -> Option<String> {
        if self.view != View::Port {
            return None;
        }
        let chosen = || {
            let sheet = self.sheet(state);
            Some(sheet.main.rows.get(self.chosen_row(&sheet)?)?.id.clone())
        };
        self.detail.clone().or_else(chosen)
    }

    fn neighbour(&self, step: usize) -> View {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        let next = at.saturating_add(step).checked_rem(View::ALL.len()).unwrap_or(0);
        View::ALL.get(next).copied().unwrap_or_default()
    }

    fn go(&mut self, view: View) {
        self.view = view;
        self.detail = None;
        self.forget();
    }

    /// What belongs to one table only.
    fn forget(&mut self) {
        self.chosen = None;
        self.sorted = None;
        self.filter.clear();
        self.top = 0;
    }

    fn back(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if let Some(detail) = self.detail.take() {
            self.forget();
            self.chosen = Some(detail);
        }
    }

    fn enter(&mut self, state: &State) {
        if self.detail.is_some() {
            return;
        }
        let sheet = self.sheet(state);
        let row = self.chosen_row(&sheet).and_then(|row| sheet.main.rows.get(row));
        if let Some(row) = row {
            self.detail = Some(row.id.clone());
            self.forget();
        }
    }

    fn step(&mut self, state: &State, to: impl Fn(usize, usize) -> usize) {
        let sheet = self.sheet(state);
        let Some(row) = self.chosen_row(&sheet) else { return };
        let last = sheet.main.rows.len().saturating_sub(1);
        let next = to(row, self.page.max(1)).min(last);
        // At its end the log follows what comes.
        let follows = self.view == View::Log && next == last;
        self.chosen = sheet.main.rows.get(next).filter(|_| !follows).map(|row| row.id.clone());
    }

    /// The next column, and after the last one the machine's own order.
    fn sort_next(&mut self, state: &State) {
        let columns = self.sheet(state).main.columns.len();
        let next = self.sorted.map_or(0, |(column, _)| column.saturating_add(1));
        self.sorted = (next < columns).then_some((next, false));
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            // A full filter takes no more. `clean` would put a `~` in place of its end, and no row has that.
            Key::Char(character) if self.filter.chars().count() < FILTER => {
                self.filter.push(character);
                self.filter = clean(&self.filter, FILTER);
            }
            _ => {}
        }
    }
}
