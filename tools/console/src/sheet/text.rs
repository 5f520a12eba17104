//! A sheet as text: aligned tables of limited width.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{Column, Row, Sheet, Table};

/// Columns between two columns of a table.
const GAP: usize = 2;
/// Widest column that is shown whole where columns have to be left out otherwise.
const WIDE: usize = 44;

/// The columns of a table that are shown, and the width of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of the column in the table, its width in characters of a terminal.
    pub columns: Vec<(usize, usize)>,
}

/// Chooses the columns for a width. Of columns with the same rank the last is left out first.
#[must_use]
pub fn layout(table: &Table, width: usize) -> Layout {
    let mut columns: Vec<(usize, usize)> = table
        .columns
        .iter()
        .enumerate()
        .map(|(n, column)| {
            let cells = table.rows.iter().filter_map(|row| row.cells.get(n)).map(|cell| cell.shown().width());
            let widest = cells.max().unwrap_or(0).min(if is_last(table, n) { width } else { WIDE });
            // One more than the title, for the mark of the order.
            (n, widest.max(column.title.width().saturating_add(1)))
        })
        .collect();
    loop {
        let needed = needed(&columns);
        let rank = |&(n, _): &(usize, usize)| table.columns.get(n).map_or(0, |column| column.rank);
        let highest = columns.iter().map(rank).max().unwrap_or(0);
        if needed <= width || highest == 0 {
            break;
        }
        if let Some(at) = columns.iter().rposition(|column| rank(column) == highest) {
            columns.remove(at);
        }
    }
    Layout { columns }
}

fn is_last(table: &Table, column: usize) -> bool {
    column.saturating_add(1) == table.columns.len()
}

fn needed(columns: &[(usize, usize)]) -> usize {
    columns.iter().map(|(_, width)| width.saturating_add(GAP)).sum::<usize>().saturating_sub(GAP)
}

impl Layout {
    /// The line with the titles. `sorted`: the column by which the rows are sorted, and whether the other way round.
    #[must_use]
    pub fn head(&self, table: &Table, sorted: Option<(usize, bool)>) -> String {
        self.line(|n| {
            let column = table.columns.get(n)?;
            let mark = match sorted {
                Some((by, true)) if by == n => "^",
                Some((by, false)) if by == n => "v",
                _ => "",
            };
            Some((format!("{}{mark}", column.title), column))
        })
    }

    /// The line of a row.
    #[must_use]
    pub fn row(&self, table: &Table, row: &Row) -> String {
        self.line(|n| Some((row.cells.get(n)?.shown(), table.columns.get(n)?)))
    }

    fn line<'a>(&self, cell: impl Fn(usize) -> Option<(String, &'a Column)>) -> String {
        let mut line = String::new();
        for (at, &(n, width)) in self.columns.iter().enumerate() {
            let Some((text, column)) = cell(n) else { continue };
            if at > 0 {
                line.extend(std::iter::repeat_n(' ', GAP));
            }
            let text = cut(&text, width);
            let space = width.saturating_sub(text.width());
            let (before, behind) = if column.is_text { (0, space) } else { (space, 0) };
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(&text);
            line.extend(std::iter::repeat_n(' ', behind));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Cuts a text to a width. A text that is cut ends with `~`.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    let mut out = String::new();
    let mut used = 0_usize;
    for character in text.chars() {
        let more = character.width().unwrap_or(0);
        if used.saturating_add(more) >= width {
            break;
        }
        used = used.saturating_add(more);
        out.push(character);
    }
    out.push('~');
    out
}

/// Breaks a sentence into lines of a width, between words where it can.
#[must_use]
pub fn wrap(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let word = cut(word, width);
        let Some(line) = lines.last_mut() else { break };
        let joined = line.width().saturating_add(word.width()).saturating_add(1);
        if line.is_empty() {
            line.push_str(&word);
        } else if joined <= width {
            line.push(' ');
            line.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    lines
}

/// The whole sheet: facts, then each table with its title. No line is wider than `width`.
#[must_use]
pub fn whole(sheet: &Sheet, sorted: Option<(usize, bool)>, width: usize) -> String {
    let mut out = String::new();
    let mut line = |text: &str| {
        out.push_str(&cut(text, width));
        out.push('\n');
    };
    for fact in &sheet.facts {
        wrap(fact, width).iter().for_each(|part| line(part));
    }
    for (n, table) in std::iter::once(&sheet.main).chain(&sheet.more).enumerate() {
        if n > 0 && table.rows.is_empty() {
            continue;
        }
        if n > 0 || !sheet.facts.is_empty() {
            line("");
        }
        line(&table.title);
        let layout = layout(table, width);
        line(&layout.head(table, sorted.filter(|_| n == 0)));
        table.rows.iter().for_each(|row| line(&layout.row(table, row)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Tone, number, words};
    use super::*;

    fn table() -> Table {
        let mut table =
            Table::new("t", "title", &[words("a", "name", 0), number("b", "left", 2), number("c", "kept", 1)]);
        table.row("x", Tone::Plain, vec!["guest".into(), 5_u64.into(), 1234_u64.into()]);
        table
    }

    #[test]
    fn columns_with_a_high_rank_are_left_out_first() {
        let table = table();
        let lines = |width| {
            let layout = layout(&table, width);
            [layout.head(&table, Some((2, false))), layout.row(&table, &table.rows[0])]
        };
        assert_eq!(lines(80), ["name    left  keptv", "guest      5   1234"]);
        assert_eq!(lines(14), ["name   keptv", "guest   1234"]);
        assert_eq!(lines(3), ["name", "guest"]);
    }

    #[test]
    fn no_line_of_a_sheet_is_wider_than_asked() {
        let sheet = Sheet {
            key: "s",
            facts: vec!["a fact of some length, 漢字漢字".into()],
            main: table(),
            more: vec![table()],
        };
        for width in 0..30 {
            let text = whole(&sheet, None, width);
            assert!(text.lines().all(|line| line.width() <= width), "{width}: {text}");
        }
        assert_eq!(cut("漢字x", 4), "漢~");
        assert_eq!(wrap("ab cd efgh", 5), ["ab cd", "efgh"]);
    }
}
