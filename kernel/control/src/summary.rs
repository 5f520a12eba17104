//! The boot's report in short: what starts, what is refused, and what the operator should know. It fits a screen of 80 by 25
//! characters, where the report itself has scrolled away.

use alloc::string::String;
use core::fmt::{self, Write};

use crate::fold::COLUMNS;
use crate::table::layout::cut;
use crate::{ReportEntry, ReportKind};

/// Most sentences. With the lines around them there is room for what is said when guests start.
const SENTENCES: usize = 12;
/// Columns of a line. In the last column of a screen some terminals go on in the next row.
const WIDTH: usize = COLUMNS - 1;

/// What a sentence begins with that is a line of another boot's log.
pub const QUOTED: &str = "| ";

/// Writes the report in short, without lines of another boot's log. `guests`: their names, and whether they start now. `refused`: the mistakes in the configuration.
/// A sentence is a line, and its end is cut off: the command `report` shows all of it.
///
/// # Errors
/// Those of `out`.
pub fn write_summary<'a>(
    report: &[ReportEntry],
    refused: &[String],
    guests: impl Iterator<Item = (&'a str, bool)> + Clone,
    out: &mut dyn Write,
) -> fmt::Result {
    out.write_str("in short:\n")?;
    let names = |wanted: bool| {
        let guests = guests.clone().filter(move |(_, starts)| *starts == wanted);
        guests.map(|(name, _)| name)
    };
    if names(true).next().is_none() {
        out.write_str("  no guest starts\n")?;
    }
    for (what, wanted) in [("guests that start", true), ("guests that wait for `start`", false)] {
        if names(wanted).next().is_some() {
            let list = fmt::from_fn(|f| {
                names(wanted)
                    .enumerate()
                    .try_for_each(|(n, name)| write!(f, "{}{name}", if n == 0 { "" } else { ", " }))
            });
            line(&format_args!("  {what}: {list}"), out)?;
        }
    }
    let told = report.iter().filter(|entry| is_told(entry));
    let all = refused.len().saturating_add(told.clone().count());
    for text in refused.iter().take(SENTENCES) {
        line(&format_args!("   refused: {text}"), out)?;
    }
    for entry in told.take(SENTENCES.saturating_sub(refused.len())) {
        line(entry, out)?;
    }
    if let Some(more @ 1..) = all.checked_sub(SENTENCES) {
        writeln!(out, "  and {more} more")?;
    }
    let sentences = report.len().saturating_add(refused.len());
    writeln!(out, "  type `report` on the serial port for all {sentences} sentences\n")
}

fn is_told(entry: &ReportEntry) -> bool {
    matches!(entry.kind, ReportKind::RequiredMissing | ReportKind::Warning) && !entry.text.starts_with(QUOTED)
}

/// Writes the beginning of a text as a line. Line ends in it are blanks.
fn line(text: &dyn fmt::Display, out: &mut dyn Write) -> fmt::Result {
    cut(WIDTH, text, &mut Blanks(out))?;
    out.write_char('\n')
}

/// Writes blanks for control characters.
struct Blanks<'a>(&'a mut dyn Write);

impl Write for Blanks<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| self.0.write_char(if c.is_control() { ' ' } else { c }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(warnings: usize, refused: &[String], guests: &[(&str, bool)]) -> Vec<String> {
        let entry = |kind, text: String| ReportEntry { kind, text: text.into() };
        let mut report = vec![entry(ReportKind::Found, "3 cores".into()), entry(ReportKind::Fallback, "no x".into())];
        report.push(entry(ReportKind::Warning, format!("{QUOTED}panic on core 0")));
        report.extend((0..warnings).map(|n| entry(ReportKind::Warning, format!("number {n} {}", "long ".repeat(40)))));
        let mut out = String::new();
        write_summary(&report, refused, guests.iter().copied(), &mut out).unwrap();
        out.lines().map(String::from).collect()
    }

    #[test]
    fn it_says_what_starts_what_is_refused_and_what_warns() {
        let refused = ["sidecore.toml:5:3: \"x\":\n no such key (guest `c` does not start)".to_owned()];
        let said = summary(1, &refused, &[("a", true), ("b", false), ("d", true)]);
        assert_eq!(said[0], "in short:");
        assert_eq!(said[1], "  guests that start: a, d");
        assert_eq!(said[2], "  guests that wait for `start`: b");
        assert_eq!(said[3], "   refused: sidecore.toml:5:3: \"x\":  no such key (guest `c` does not start)");
        assert!(said[4].starts_with("   warning: number 0 long ") && said[4].ends_with(".."), "{}", said[4]);
        assert_eq!(said[5], "  type `report` on the serial port for all 5 sentences");
        assert_eq!(said.len(), 7, "what is only found, decided or quoted is not told");
    }

    #[test]
    fn it_fits_a_screen_whatever_there_is_to_say() {
        let refused: Vec<String> = (0..9).map(|n| format!("{n} {}", "y".repeat(500))).collect();
        let names: Vec<String> = (0..64).map(|n| format!("guest-{n}")).collect();
        let guests: Vec<(&str, bool)> = names.iter().enumerate().map(|(n, name)| (&**name, n % 2 == 0)).collect();
        for (warnings, refused) in [(0, &refused[..]), (40, &refused[..]), (40, &[]), (0, &[])] {
            let said = summary(warnings, refused, &guests);
            assert!(said.len() <= 18 && said.iter().all(|line| line.chars().count() < COLUMNS), "{said:?}");
            let more = (warnings + refused.len()).saturating_sub(SENTENCES);
            assert_eq!(said.contains(&format!("  and {more} more")), more > 0, "{said:?}");
        }
        assert_eq!(summary(0, &[], &[])[1], "  no guest starts");
    }
}
