//! How values are shown in sentences.

use core::fmt::{self, Write as _};

/// Shows the beginning of a text in an error message, because input can be as long as a line.
pub(crate) struct Shortened<'a>(pub &'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().take(40).flat_map(char::escape_default).try_for_each(|character| f.write_char(character))?;
        if self.0.chars().nth(40).is_some() { f.write_str("...") } else { Ok(()) }
    }
}

/// Shows values with commas between them.
#[derive(Clone, Copy, Debug)]
pub struct Joined<I>(pub I);

impl<I: Iterator<Item: fmt::Display> + Clone> fmt::Display for Joined<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.clone().enumerate().try_for_each(|(n, value)| write!(f, "{}{value}", if n == 0 { "" } else { ", " }))
    }
}
