//! Lays a table out: columns as wide as their widest cell, in lines of up to 80 columns.
//!
//! A table that is wider is written in several parts, each with some of the columns. Its first columns, which say what a row is
//! about, stand in each part. Only if they leave too little room are they cut, and end in `..`.

use core::fmt::{self, Display, Write};
use core::iter;

use crate::fold::COLUMNS;

/// Columns between two cells.
pub(super) const GAP: usize = 2;
/// Widest cell of those that are not in each part. It is enough for two numbers, or for a name and a word.
const WIDEST: usize = 44;
/// Narrowest column.
const NARROWEST: usize = 4;

/// What stands in a table.
#[derive(Clone, Copy)]
pub(crate) enum Cell<'a> {
    Text(&'a str),
    /// A text, a colon and another one.
    Kind(&'a str, &'a str),
    Number(u64),
    /// A word and a number.
    Numbered(&'a str, u64),
    /// Ticks, with their number in a second: microseconds, cut to two decimals.
    Micros(u64, u64),
    /// Bytes, in the largest binary unit that gives at least 1, cut to one decimal.
    Bytes(u64),
    /// Thousandths, shown as percent.
    Thousandths(u128),
    /// So many of all. Nothing if there are none.
    Of(u64, u64),
    /// Numbers, with commas.
    Numbers(&'a [u64]),
}

impl Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Text(text) => f.write_str(text),
            Self::Kind(what, kind) => write!(f, "{what}: {kind}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Numbered(word, number) => write!(f, "{word} {number}"),
            Self::Micros(ticks, hz) => {
                let hundredths = u128::from(ticks).saturating_mul(100_000_000).checked_div(hz.into()).unwrap_or(0);
                write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
            }
            Self::Bytes(value) => bytes(value, f),
            Self::Thousandths(value) => write!(f, "{}.{} %", value / 10, value % 10),
            Self::Of(_, 0) => Ok(()),
            Self::Of(some, all) => write!(f, "{some}/{all}"),
            Self::Numbers(numbers) => numbers
                .iter()
                .enumerate()
                .try_for_each(|(n, number)| write!(f, "{}{number}", if n == 0 { "" } else { "," })),
        }
    }
}

/// Writes bytes in the largest binary unit that gives at least 1, cut to one decimal.
fn bytes(value: u64, out: &mut dyn Write) -> fmt::Result {
    let (shift, unit) = match value {
        0..0x400 => return write!(out, "{value} B"),
        0x400..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    let tenths = (u128::from(value) * 10) >> shift;
    if tenths.is_multiple_of(10) {
        write!(out, "{} {unit}", tenths / 10)
    } else {
        write!(out, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// Counts the characters that are written.
struct Counting(usize);

impl Write for Counting {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.saturating_add(text.chars().count());
        Ok(())
    }
}

/// How wide a value is, in characters.
pub(crate) fn wide(value: &dyn Display) -> usize {
    let mut counting = Counting(0);
    // Counting does not fail.
    let _ = write!(counting, "{value}");
    counting.0
}

/// Writes a value and blanks after it.
pub(crate) fn left(width: usize, value: impl Display, out: &mut dyn Write) -> fmt::Result {
    write!(out, "{value}{:1$}", "", width.saturating_sub(wide(&value)))
}

/// Writes rows below their column names. `align` has `l` or `r` for each column. The first `keys` columns say what a row is about.
pub(crate) fn table<'a, const N: usize>(
    names: [&'a str; N],
    align: &str,
    keys: usize,
    rows: impl Iterator<Item = [Cell<'a>; N]> + Clone,
    out: &mut dyn Write,
) -> fmt::Result {
    let all = || iter::once(names.map(Cell::Text)).chain(rows.clone());
    let mut widths = [0; N];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = wide(cell).max(*width);
        }
    }
    let (keyed, others) = widths.split_at_mut_checked(keys).unwrap_or_default();
    others.iter_mut().for_each(|width| *width = WIDEST.min(*width));
    let room = COLUMNS.saturating_sub(others.iter().max().map_or(0, |width| width.saturating_add(GAP)));
    while line(keyed) > room
        && let Some(widest) = keyed.iter_mut().max().filter(|width| **width > NARROWEST)
    {
        *widest = widest.saturating_sub(1);
    }
    let keyed = line(keyed);
    let mut first = keys;
    loop {
        let mut width = keyed;
        let more = widths.iter().skip(first).take_while(|column| {
            width = width.saturating_add(GAP).saturating_add(**column);
            width <= COLUMNS
        });
        let part = first..first.saturating_add(more.count().max(1));
        for row in all() {
            let cells = row.iter().zip(widths).zip(align.bytes()).zip(0..);
            let shown = cells.filter(|(_, column)| *column < keys || part.contains(column));
            write_row(shown.map(|(cell, _)| cell), out)?;
        }
        if part.end >= N {
            return Ok(());
        }
        first = part.end;
        out.write_char('\n')?;
    }
}

/// Columns of a line with cells of these widths.
pub(super) fn line(widths: &[usize]) -> usize {
    let gaps = widths.len().saturating_sub(1).saturating_mul(GAP);
    widths.iter().fold(gaps, |sum, width| sum.saturating_add(*width))
}

/// Writes a row: cells with the widths of their columns and their alignment.
fn write_row<'r>(cells: impl Iterator<Item = ((&'r Cell<'r>, usize), u8)>, out: &mut dyn Write) -> fmt::Result {
    // Blanks are written when something follows them.
    let mut blanks = 0_usize;
    for ((cell, width), align) in cells {
        let len = wide(cell).min(width);
        let missing = width.saturating_sub(len);
        let before = if align == b'r' { blanks.saturating_add(missing) } else { blanks };
        blanks = if align == b'r' { GAP } else { missing.saturating_add(GAP) };
        if len == 0 {
            blanks = blanks.saturating_add(before);
        } else {
            write!(out, "{:before$}", "")?;
            cut(width, cell, out)?;
        }
    }
    out.write_char('\n')
}

/// Writes a value. If it has more than `width` characters, its end is replaced by `..`.
pub(crate) fn cut(width: usize, value: &dyn Display, out: &mut dyn Write) -> fmt::Result {
    struct Cut<'a> {
        out: &'a mut dyn Write,
        left: usize,
    }
    impl Write for Cut<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for character in text.chars() {
                if self.left == 0 {
                    break;
                }
                self.left = self.left.saturating_sub(1);
                self.out.write_char(character)?;
            }
            Ok(())
        }
    }
    let fits = wide(value) <= width;
    let mut cut = Cut { out, left: if fits { width } else { width.saturating_sub(2) } };
    write!(cut, "{value}")?;
    if fits { Ok(()) } else { cut.out.write_str("..") }
}
