//! The prompt of a login without a command, at a terminal: the line editor of COM1 ([`control::Editor`]), its history and its
//! completion. A name of a guest is completed if the key is for that guest.

use std::io::{self, Write};

use control::{Command, Editor, Event, PROMPT};

use crate::client::Broker;
use crate::input::Input;
use crate::key::Key;
use crate::terminal::Raw;

/// Ctrl-D.
const END: u8 = 4;

/// Asks for lines.
#[derive(Default)]
pub struct Prompt {
    editor: Editor,
}

impl Prompt {
    /// Asks for a line. The terminal is raw only meanwhile, so Ctrl-C ends a command. `None`: the input has ended, or Ctrl-D was
    /// typed into an empty line.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn ask(
        &mut self,
        broker: &Broker,
        key: &Key,
        input: &mut Input,
        out: &mut dyn Write,
    ) -> io::Result<Option<String>> {
        // A signal may have ended it while a guest was attached.
        if input.is_over() {
            return Ok(None);
        }
        let _raw = Raw::new(input)?;
        let mut text = PROMPT.to_owned();
        loop {
            out.write_all(std::mem::take(&mut text).as_bytes())?;
            out.flush()?;
            let Some(byte) = input.byte()? else { return Ok(None) };
            if byte == END && self.editor.text().is_empty() {
                writeln!(out)?;
                return Ok(None);
            }
            // Writing to a string does not fail.
            if byte == b'\t' && self.editor.is_between_keys() {
                let guests = guests(broker, key);
                if control::complete(&mut self.editor, guests.iter().map(String::as_str), &mut text).unwrap_or(false) {
                    text.push_str(PROMPT);
                    text.push_str(self.editor.text());
                }
            } else if let Ok(Some(line)) = self.editor.feed(byte, &mut text) {
                out.write_all(text.as_bytes())?;
                out.flush()?;
                return Ok(Some(line.as_str().to_owned()));
            }
        }
    }
}

/// The names of the guests that the key is for. None if it may not ask.
fn guests(broker: &Broker, key: &Key) -> Vec<String> {
    if key.check(&Command::List).is_err() {
        return Vec::new();
    }
    let answer = broker.connect(false).and_then(|mut client| client.ask(Command::List));
    match answer.ok().and_then(|(answer, _)| key.sees(answer)) {
        Some(Event::Reply { guests: Some(guests), .. }) => guests.into_iter().map(|guest| guest.name).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
