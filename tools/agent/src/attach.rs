//! `attach`: a guest's console. What is typed goes to the guest, and what the guest writes is shown.
//!
//! The control channel has a guest's output by **whole lines** (`kernel/src/guests/console.rs`): a prompt, an echo, a progress bar are
//! seen when their line ends. So what a person types is shown here until Enter, and the guest's echo of it comes when its line ends.
//! Output is filtered as on COM1 ([`control::TerminalFilter`]), unless the person has chosen `--raw`.

use std::io::{self, Write};
use std::os::fd::AsFd as _;

use control::{Command, Event, LEAVE_KEY, TerminalFilter};

use crate::client::{Broker, Failed};
use crate::input::{Input, Ready};
use crate::terminal::Raw;

/// Most bytes of input in one command. In JSON each may take six, and a command has 3,952.
const PIECE: usize = 512;
/// Most characters of the typed line that are shown, so that it is one line of the terminal.
const SHOWN: usize = 70;
/// Goes to the beginning of the line and erases it (ECMA-48 8.3.41).
const ERASE: &str = "\r\x1b[K";
/// The terminal's own colours (ECMA-48 8.3.117).
const PLAIN: &str = "\x1b[0m";

/// Attaches to a guest's console until the input ends, or a person types Ctrl-]. `raw`: output is not filtered. What the hypervisor
/// refuses meanwhile is written to `errors`, but not the same again and again.
///
/// # Errors
/// There is no such guest, the hypervisor does not answer, or the input or the output broke.
pub fn attach(
    broker: &Broker,
    guest: &str,
    raw: bool,
    input: &mut Input,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<(), Failed> {
    let mut client = broker.connect(true)?;
    let command = |text: String| Command::Input { guest: guest.to_owned(), text };
    // An empty text types nothing, but there has to be such a guest.
    let (_, before) = client.ask(command(String::new()))?;
    let is_person = input.is_terminal();
    let _raw = if is_person { Some(Raw::new(input)?) } else { None };
    let mut screen =
        Screen { guest, out, filter: (!raw).then(TerminalFilter::new), typed: Typed::default(), is_person };
    screen.begin()?;
    screen.events(before)?;
    let (mut characters, mut refused, mut is_left) = (Characters::default(), String::new(), false);
    while !is_left && !input.is_over() {
        let ready = if client.has_begun() { Ready::Other } else { input.wait(Some(client.as_fd()), None)? };
        match ready {
            Ready::Input => {
                let mut bytes = input.read_some(PIECE, is_person.then_some(LEAVE_KEY))?;
                is_left = is_person && bytes.pop_if(|last| *last == LEAVE_KEY).is_some();
                let text = characters.take(&bytes, input.is_over());
                if text.is_empty() {
                    continue;
                }
                screen.echo(&text)?;
                match client.ask(command(text)) {
                    Ok((_, events)) => {
                        refused.clear();
                        screen.events(events)?;
                    }
                    // The guest may take the next key.
                    Err(Failed::Refused(why)) => {
                        if why != refused {
                            let _ = writeln!(errors, "{why}");
                        }
                        refused = why;
                    }
                    Err(why) => return Err(why),
                }
            }
            Ready::Other => match client.event() {
                Ok(event) => screen.events([event])?,
                // A line of a newer hypervisor.
                Err(Failed::NotAnAnswer(_)) => {}
                Err(why) => return Err(why),
            },
            Ready::Signal | Ready::Nothing => {}
        }
    }
    Ok(screen.end()?)
}

/// Makes characters of bytes that come in pieces.
#[derive(Default)]
struct Characters {
    /// The beginning of a character.
    begun: Vec<u8>,
}

impl Characters {
    /// Takes bytes. `is_last`: no more come. What is no UTF-8 becomes U+FFFD.
    fn take(&mut self, bytes: &[u8], is_last: bool) -> String {
        self.begun.extend_from_slice(bytes);
        let mut text = String::new();
        let bytes = std::mem::take(&mut self.begun);
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let may_grow = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
            match chunk.invalid() {
                [] => {}
                begun if may_grow && chunks.peek().is_none() && !is_last => self.begun = begun.to_vec(),
                _ => text.push(char::REPLACEMENT_CHARACTER),
            }
        }
        text
    }
}

/// Where the keys are in an escape sequence, which is not shown.
#[derive(Clone, Copy, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    Sequence,
}

/// What a person has typed since Enter, as far as it is text.
#[derive(Default)]
struct Typed {
    text: String,
    escape: Escape,
}

impl Typed {
    fn take(&mut self, keys: &str) {
        for key in keys.chars() {
            (self.escape, _) = match (self.escape, key) {
                (Escape::None, '\x1b') => (Escape::Begun, ()),
                (Escape::Begun, '[' | 'O') => (Escape::Sequence, ()),
                (Escape::Sequence, '\0'..='?') => (Escape::Sequence, ()),
                (Escape::Begun | Escape::Sequence, _) => (Escape::None, ()),
                // Enter, Ctrl-C, Ctrl-D, Ctrl-U.
                (Escape::None, '\r' | '\n' | '\x03' | '\x04' | '\x15') => (Escape::None, self.text.clear()),
                (Escape::None, '\x08' | '\x7f') => (Escape::None, _ = self.text.pop()),
                (Escape::None, key) if key.is_control() => (Escape::None, ()),
                (Escape::None, key) => (Escape::None, self.text.push(key)),
            };
        }
    }

    /// The end of it.
    fn shown(&self) -> &str {
        let start = self.text.char_indices().rev().nth(SHOWN - 1).map_or(0, |(start, _)| start);
        self.text.get(start..).unwrap_or_default()
    }
}

/// What the guest writes, and below it what is being typed.
struct Screen<'a> {
    guest: &'a str,
    out: &'a mut dyn Write,
    filter: Option<TerminalFilter>,
    typed: Typed,
    is_person: bool,
}

impl Screen<'_> {
    fn begin(&mut self) -> io::Result<()> {
        let guest = self.guest;
        self.note(&format!("attached to {guest}; Ctrl-] leaves. Its output is shown by whole lines.\n"))
    }

    fn end(&mut self) -> io::Result<()> {
        let guest = self.guest;
        self.note(&format!("{ERASE}{PLAIN}left {guest}\n"))
    }

    /// Says something to a person.
    fn note(&mut self, text: &str) -> io::Result<()> {
        if !self.is_person {
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Shows what a person has typed.
    fn echo(&mut self, keys: &str) -> io::Result<()> {
        self.typed.take(keys);
        let shown = format!("{ERASE}{}", self.typed.shown());
        self.note(&shown)
    }

    /// Shows what there is of the guest in these events.
    fn events(&mut self, events: impl IntoIterator<Item = Event>) -> io::Result<()> {
        for event in events {
            match event {
                Event::Console { guest, line } if guest == self.guest => self.line(line)?,
                Event::Dropped { guest: Some(guest), bytes, .. } if guest == self.guest => {
                    self.note(&format!("{ERASE}{PLAIN}(here {bytes} bytes are missing)\n{}", self.typed.shown()))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn line(&mut self, mut line: String) -> io::Result<()> {
        line.push('\n');
        let mut bytes = Vec::new();
        if self.is_person {
            bytes.extend_from_slice(ERASE.as_bytes());
        }
        match &mut self.filter {
            Some(filter) => filter.feed(line.as_bytes(), &mut bytes).map_err(|_| io::ErrorKind::OutOfMemory)?,
            None => bytes.extend_from_slice(line.as_bytes()),
        }
        if self.is_person && self.filter.is_some() {
            bytes.extend_from_slice(PLAIN.as_bytes());
        }
        if self.is_person {
            bytes.extend_from_slice(self.typed.shown().as_bytes());
        }
        self.out.write_all(&bytes)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
