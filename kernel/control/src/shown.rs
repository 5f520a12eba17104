//! How values are shown in sentences.

use core::fmt::{self, Write};

use heapless::String;

/// Shows the beginning of a text in an error message, because input can be as long as a line.
pub(crate) struct Shortened<'a>(pub &'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().take(40).flat_map(char::escape_default).try_for_each(|character| f.write_char(character))?;
        if self.0.chars().nth(40).is_some() { f.write_str("...") } else { Ok(()) }
    }
}

/// Keeps as much of the beginning of a value as there is room for. Control characters are left out.
pub(crate) fn beginning<const MOST: usize>(value: impl fmt::Display) -> String<MOST> {
    struct Beginning<const MOST: usize>(String<MOST>);
    impl<const MOST: usize> Write for Beginning<MOST> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            text.chars().filter(|c| !c.is_control()).try_for_each(|c| self.0.push(c).map_err(|_| fmt::Error))
        }
    }
    let mut beginning = Beginning(String::new());
    // It ends with an error where it is full.
    let _ = write!(beginning, "{value}");
    beginning.0
}

/// Shows values with commas between them.
#[derive(Clone, Copy, Debug)]
pub struct Joined<I>(pub I);

impl<I: Iterator<Item: fmt::Display> + Clone> fmt::Display for Joined<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.clone().enumerate().try_for_each(|(n, value)| write!(f, "{}{value}", if n == 0 { "" } else { ", " }))
    }
}
