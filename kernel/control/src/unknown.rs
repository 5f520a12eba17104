//! The sentence for a word that there is not.

use crate::no_memory::sentence;
use crate::shown::{Joined, Shortened};
use crate::{Text, nearest};

/// Says that there is no such word, and names the nearest one that there is.
pub(crate) fn unknown<'a>(what: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Text {
    let shown = Shortened(word);
    match nearest(word, known.clone()) {
        Some(meant) => sentence(format_args!("no {what} `{shown}`; did you mean `{meant}`?")),
        None => sentence(format_args!("no {what} `{shown}`; there are: {}", Joined(known))),
    }
}
