//! The prompt of the shell, and messages that come while a line is typed.
//!
//! A message that comes by itself erases the prompt and the line from the screen. When all messages are out, the shell shows
//! both again. So what is typed stays whole, and so does the message.

use core::sync::atomic::{AtomicBool, Ordering};

/// Whether the prompt is on the screen. Messages come from anywhere, so it is shared.
#[derive(Debug, Default)]
pub struct Prompt(AtomicBool);

impl Prompt {
    /// Makes a prompt that is not on the screen.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Notes that the prompt, with what is typed, is the last line of the screen.
    pub fn shown(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Notes that its line has ended.
    pub fn ended(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it is not on the screen.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Returns what is to be written before a message: it erases the line of the prompt, if that is on the screen. From now on
    /// it is not.
    #[must_use]
    pub fn before_message(&self) -> &'static str {
        // CR, and erase to the end of the line (ECMA-48 8.3.41).
        if self.0.swap(false, Ordering::Relaxed) { "\r\x1b[K" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Shell};

    #[test]
    fn a_message_leaves_the_typed_line_whole() {
        let (mut shell, prompt) = (Shell::new(), Prompt::new());
        let mut terminal = crate::screen_of::terminal();
        let mut out = String::new();
        shell.prompt(&mut out).unwrap();
        prompt.shown();
        for (n, byte) in b"start al".iter().enumerate() {
            if prompt.is_missing() {
                shell.prompt(&mut out).unwrap();
                prompt.shown();
            }
            assert_eq!(shell.feed(*byte, &mut out), Ok(Action::None));
            if n == 3 {
                for message in ["guest beta: stopped: killed", "info: something"] {
                    out += &format!("{}{message}\r\n", prompt.before_message());
                }
            }
        }
        terminal.process(out.as_bytes());
        let expected = "guest beta: stopped: killed\ninfo: something\nsidecore> start al";
        assert_eq!(terminal.screen().contents(), expected);
        assert_eq!(terminal.screen().cursor_position(), (2, "sidecore> start al".len() as u16));
    }

    #[test]
    fn without_a_prompt_nothing_is_erased() {
        let prompt = Prompt::new();
        assert_eq!(prompt.before_message(), "");
        prompt.shown();
        prompt.ended();
        assert_eq!(prompt.before_message(), "");
    }
}
