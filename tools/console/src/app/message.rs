//! What happens to the program.

use crate::link::News;
use crate::ui::Key;

/// What happens to the program.
#[derive(Debug)]
pub enum Message {
    /// Something about the machine.
    News(News),
    /// A key.
    Key(Key),
    /// The terminal has another size.
    Resized,
    /// The terminal is gone.
    Hangup,
}

impl Message {
    /// What it says of the machine, if it is about that.
    pub fn into_news(self) -> Option<News> {
        match self {
            Self::News(news) => Some(news),
            Self::Key(_) | Self::Resized | Self::Hangup => None,
        }
    }
}
