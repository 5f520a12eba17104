//! The person's terminal in raw mode, for `cargo mk run -i`.

use std::io::{IsTerminal as _, stdin};

use anyhow::{Context as _, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Raw mode, for as long as this lives. Without effect if standard input is no terminal.
pub struct Raw(Option<Termios>);

impl Raw {
    /// Switches it on.
    pub fn enter() -> Result<Self> {
        if !stdin().is_terminal() {
            return Ok(Self(None));
        }
        let before = tcgetattr(stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).context("cannot change the terminal's settings")?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // An error could not be reported to anybody.
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}
