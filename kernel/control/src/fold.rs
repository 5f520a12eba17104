//! Lines for a terminal of 80 columns.

use core::fmt::{self, Write};

use heapless::String;

/// Columns of the operator's terminal.
pub const COLUMNS: usize = 80;
/// Columns before the second and each further line of a sentence, unless it has fewer.
const INDENT: usize = 4;
/// Longest word that stays whole.
const WORD: usize = COLUMNS - INDENT;

/// Writes a sentence in lines of up to 80 columns. Lines end between words. A word that is longer than a line is cut. Text is
/// taken to have a column a character.
pub(crate) struct Folded<'a> {
    out: &'a mut dyn Write,
    /// Columns before the second and each further line.
    indent: usize,
    /// Columns of the line so far.
    column: usize,
    /// The word that is being written. It has up to four bytes a character.
    word: String<{ WORD * 4 }>,
    characters: usize,
    /// Whether a blank stands before the word.
    blank: bool,
}

impl<'a> Folded<'a> {
    /// Begins a sentence at the beginning of a line.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out, indent: INDENT, column: 0, word: String::new(), characters: 0, blank: false }
    }

    /// The same with two columns before further lines.
    pub fn close(out: &'a mut dyn Write) -> Self {
        Self { indent: 2, ..Self::new(out) }
    }

    /// Ends the sentence and its line.
    pub fn end(mut self) -> fmt::Result {
        self.end_word()?;
        self.out.write_char('\n')
    }

    fn end_word(&mut self) -> fmt::Result {
        if self.characters == 0 {
            return Ok(());
        }
        let blank = usize::from(self.blank);
        let end = self.column.saturating_add(blank).saturating_add(self.characters);
        if end > COLUMNS {
            write!(self.out, "\n{:1$}", "", self.indent)?;
            self.column = self.indent.saturating_add(self.characters);
        } else {
            self.out.write_str(if self.blank { " " } else { "" })?;
            self.column = end;
        }
        self.out.write_str(&self.word)?;
        self.word.clear();
        (self.characters, self.blank) = (0, false);
        Ok(())
    }
}

impl Write for Folded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if character == ' ' {
                self.end_word()?;
                self.blank = true;
                continue;
            }
            if self.characters == WORD {
                self.end_word()?;
            }
            self.word.push(character).map_err(|_| fmt::Error)?;
            self.characters = self.characters.saturating_add(1);
        }
        Ok(())
    }
}

/// Writes a sentence and the end of its line.
///
/// # Errors
/// Those of `out`.
pub(crate) fn sentence_line(out: &mut dyn Write, text: fmt::Arguments<'_>) -> fmt::Result {
    let mut line = Folded::new(out);
    line.write_fmt(text)?;
    line.end()
}

/// Writes CR LF for each LF.
pub(crate) struct Returns<'a>(pub &'a mut dyn Write);

impl Write for Returns<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                self.0.write_str("\r\n")?;
            }
            self.0.write_str(line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn folded(text: &str) -> std::string::String {
        let mut out = std::string::String::new();
        sentence_line(&mut out, format_args!("{text}")).unwrap();
        out
    }

    #[test]
    fn a_sentence_is_cut_between_words() {
        assert_eq!(folded("a short one"), "a short one\n");
        let exact = format!("{} {}", "x".repeat(40), "y".repeat(39));
        assert_eq!(folded(&exact), format!("{exact}\n"));
        let longer = format!("{} {}", "x".repeat(40), "y".repeat(40));
        assert_eq!(folded(&longer), format!("{}\n    {}\n", "x".repeat(40), "y".repeat(40)));
    }

    #[test]
    fn a_word_longer_than_a_line_is_cut() {
        assert_eq!(folded(&"z".repeat(100)), format!("{}\n    {}\n", "z".repeat(76), "z".repeat(24)));
    }

    proptest! {
        #[test]
        fn no_line_is_longer_and_no_character_is_lost(text in "[a-zé ]{0,400}") {
            let out = folded(&text);
            prop_assert!(out.lines().all(|line| line.chars().count() <= COLUMNS), "{}", out);
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<std::string::String>();
            prop_assert_eq!(letters(&out), letters(&text));
        }
    }
}
