//! `attach`: a guest's console. What is typed goes to the guest, and what the guest writes is shown, as it comes: also a prompt, an echo or
//! a progress bar whose line has no end yet. What is typed is not shown here: the guest echoes it, or does not, as for a password.
//!
//! Output is filtered as on COM1 ([`control::TerminalFilter`]), unless the person has chosen `--raw`.

use std::io::{self, Write};
use std::os::fd::AsFd as _;

use control::{Command, Event, LEAVE_KEY, TerminalFilter};

use crate::client::{Broker, Failed};
use crate::input::{Input, Ready};
use crate::terminal::Raw;

/// Most bytes of input in one command. In JSON each may take six, and a command has 3,952.
const PIECE: usize = 512;
/// The terminal's own colours (ECMA-48 8.3.117).
const PLAIN: &str = "\x1b[0m";

/// Attaches to a guest's console until the input ends, or a person types Ctrl-]. A person sees the last output of before too. `raw`:
/// output is not filtered. What the hypervisor refuses meanwhile is written to `errors`, but not the same again and again.
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
    let mut client = broker.connect(false)?;
    let (answer, before) = client.ask(Command::Follow { guest: guest.to_owned(), on: true })?;
    let Event::Output { at, text: earlier, .. } = answer else {
        return Err(Failed::NotAnAnswer("output of the guest was expected".to_owned()));
    };
    let is_person = input.is_terminal();
    // The guest says itself where its lines begin, as on COM1.
    let _raw = if is_person { Some(Raw::whole(input)?) } else { None };
    let mut screen = Screen { guest, out, errors, filter: (!raw).then(TerminalFilter::new), position: at, is_person };
    screen.begin(&earlier)?;
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
                match client.ask(Command::Input { guest: guest.to_owned(), text }) {
                    Ok((_, events)) => {
                        refused.clear();
                        screen.events(events)?;
                    }
                    // The guest may take the next key.
                    Err(Failed::Refused(why)) => {
                        if why != refused {
                            screen.tell(&why);
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

/// What the guest writes.
struct Screen<'a> {
    guest: &'a str,
    out: &'a mut dyn Write,
    errors: &'a mut dyn Write,
    filter: Option<TerminalFilter>,
    /// How many bytes of the guest's output have come since sidecore's start, or were there before.
    position: u64,
    is_person: bool,
}

impl Screen<'_> {
    /// `earlier`: the last output of before, for a person.
    fn begin(&mut self, earlier: &str) -> io::Result<()> {
        let begin = self.position;
        if !self.is_person {
            self.position = begin.saturating_add(earlier.chars().count() as u64);
            return Ok(());
        }
        write!(self.out, "attached to {}; Ctrl-] leaves.\r\n", self.guest)?;
        self.out.flush()?;
        self.output(begin, earlier)
    }

    fn end(&mut self) -> io::Result<()> {
        if self.is_person {
            write!(self.out, "{PLAIN}\r\nleft {}\r\n", self.guest)?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Says something that the guest has not.
    fn tell(&mut self, what: &str) {
        let end = if self.is_person { "\r\n" } else { "\n" };
        let _ = write!(self.errors, "{what}{end}");
    }

    /// Shows what there is of the guest in these events.
    fn events(&mut self, events: impl IntoIterator<Item = Event>) -> io::Result<()> {
        for event in events {
            if let Event::Output { guest, at, text, .. } = event
                && guest == self.guest
            {
                self.output(at, &text)?;
            }
        }
        Ok(())
    }

    /// Shows output that begins at this byte, but for what was shown already. Says how many bytes are missing before it.
    fn output(&mut self, at: u64, text: &str) -> io::Result<()> {
        let missing = at.saturating_sub(self.position);
        if missing > 0 {
            self.tell(&format!("(here {missing} bytes are missing)"));
        }
        // Each character is a byte.
        let all: Vec<u8> = text.chars().map(|character| u8::try_from(character).unwrap_or(b'?')).collect();
        let shown = usize::try_from(self.position.saturating_sub(at)).unwrap_or(usize::MAX).min(all.len());
        self.position = self.position.max(at.saturating_add(all.len() as u64));
        let new = &all[shown..];
        let mut filtered = Vec::new();
        let bytes = match &mut self.filter {
            Some(filter) => {
                filter.feed(new, &mut filtered).map_err(|_| io::ErrorKind::OutOfMemory)?;
                &filtered
            }
            None => new,
        };
        self.out.write_all(bytes)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
