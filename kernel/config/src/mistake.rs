//! A mistake in the configuration, and its place.

use alloc::string::{String, ToString};
use core::fmt;
use core::ops::Range;

/// A place in the file, and the text there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1. 0 for a value that does not come from a file.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The text in the file, shortened.
    pub value: String,
}

/// A value in the file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// File name.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The wrong text in the file, shortened.
    pub value: String,
    /// What was expected.
    pub message: String,
    /// The guest that is left out because of it.
    pub guest: Option<String>,
}

impl Mistake {
    /// Makes a mistake at `place`.
    #[must_use]
    pub fn new(file: &str, place: &Place, message: impl Into<String>) -> Self {
        let Place { line, column, value } = place.clone();
        Self { file: file.into(), line, column, value, message: message.into(), guest: None }
    }

    /// Makes a mistake at `place` that leaves out `guest`.
    #[must_use]
    pub fn of_guest(self, guest: &str) -> Self {
        Self { guest: Some(guest.into()), ..self }
    }
}

impl fmt::Display for Mistake {
    /// `sidecore.toml:12:10: "1X": expected ... (guest `a` does not start)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}: {}", self.file, self.line, self.column, self.value, self.message)?;
        match &self.guest {
            Some(guest) => write!(f, " (guest `{guest}` does not start)"),
            None => Ok(()),
        }
    }
}

impl From<Mistake> for control::Event {
    fn from(mistake: Mistake) -> Self {
        Self::ConfigError {
            file: mistake.file,
            line: mistake.line.into(),
            column: mistake.column.into(),
            value: mistake.value,
            message: mistake.message,
            guest: mistake.guest,
        }
    }
}

/// The file being read. It converts byte ranges to places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl Source<'_> {
    /// Returns the place of the bytes `span`. A span beyond the text counts as its end.
    pub fn place(&self, span: Range<usize>) -> Place {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline.saturating_add(1));
        let line = before.matches('\n').count().saturating_add(1);
        let column = before.get(line_start..).map_or(0, |text| text.chars().count()).saturating_add(1);
        let value = match self.text.get(span) {
            // If something is missing, the parser points between characters. Then the whole line is more helpful.
            Some("" | "\n" | "\r\n") | None => {
                self.text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or("")
            }
            Some(value) => value,
        };
        let clamp = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Place { line: clamp(line), column: clamp(column), value: shortened(value) }
    }

    pub fn mistake(&self, span: Range<usize>, message: impl Into<String>) -> Mistake {
        Mistake::new(self.file, &self.place(span), message)
    }
}

/// Returns the first line of a value, at most 60 characters, with visible control characters.
pub(crate) fn shortened(value: &str) -> String {
    const LIMIT: usize = 60;
    let first = value.trim().lines().next().unwrap_or("");
    let mut out = String::new();
    for character in first.chars().take(LIMIT) {
        if character.is_control() { out.extend(character.escape_default()) } else { out.push(character) }
    }
    if first.chars().nth(LIMIT).is_some() || value.trim().lines().nth(1).is_some() {
        out.push_str("...");
    }
    if out.is_empty() { "(nothing)".to_string() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let source = Source { file: "f", text: "a = 1\n# ä\nß = 'x'\n" };
        let start = source.text.find("'x'").unwrap();
        assert_eq!(source.place(start..start + 3), Place { line: 3, column: 5, value: "'x'".into() });
        assert_eq!(source.place(0..1), Place { line: 1, column: 1, value: "a".into() });
    }

    #[test]
    fn a_place_beyond_the_text_is_its_end() {
        let source = Source { file: "f", text: "a =" };
        assert_eq!(source.place(3..3), Place { line: 1, column: 4, value: "a =".into() });
        assert_eq!(source.place(90..99).line, 1);
        let empty = Source { file: "f", text: "" };
        assert_eq!(empty.place(0..0), Place { line: 1, column: 1, value: "(nothing)".into() });
    }

    #[test]
    fn a_long_value_is_shortened_and_shown_on_one_line() {
        assert_eq!(shortened(&"x".repeat(100)), format!("{}...", "x".repeat(60)));
        assert_eq!(shortened("a\nb"), "a...");
        assert_eq!(shortened("a\u{1b}b"), "a\\u{1b}b");
    }
}
