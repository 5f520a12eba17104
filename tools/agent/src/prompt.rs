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
mod tests {
    use std::fs::File;
    use std::thread;

    use control::{GuestState, GuestSummary, Permissions};

    use super::*;
    use crate::broker::tests::machine;
    use crate::terminal::tests::{is_raw, person};

    /// A machine with the guests `alpha`, `alpine` and `beta`.
    fn broker() -> Broker {
        let socket = machine(|request| {
            assert_eq!(request.command, Command::List);
            let guest = |name: &str| GuestSummary {
                name: name.into(),
                state: GuestState::Running,
                cores: Vec::new(),
                memory: 0,
                regions: Vec::new(),
                reason: None,
            };
            let guests = Some(["alpha", "alpine", "beta"].map(guest).into());
            let reply = Event::Reply { id: request.id, ok: true, error: None, guests, version: None };
            vec![reply.to_line().unwrap()]
        });
        Broker { socket, sender: control::Sender::default() }
    }

    /// The lines that a person gets who types these keys, each at a prompt of its own. The last ones end it.
    fn lines(allowed: Permissions, guests: Option<&[&str]>, keys: &[&[u8]]) -> Vec<String> {
        let (mut person, program) = person();
        let key = Key::new("anna", "", allowed, guests.map(|all| all.iter().map(|name| (*name).to_owned()).collect()));
        let asking = thread::spawn(move || {
            let (broker, mut prompt) = (broker(), Prompt::default());
            let mut out = File::from(program.try_clone().unwrap());
            let mut input = Input::new(program.try_clone().unwrap());
            let mut next = || prompt.ask(&broker, &key, &mut input, &mut out).unwrap();
            let mut lines = Vec::new();
            while let Some(line) = next() {
                assert!(!is_raw(&program), "a command has the terminal as it was");
                lines.push(line);
            }
            lines
        });
        for keys in keys {
            person.sees("sidecore>");
            person.types(keys);
        }
        asking.join().unwrap()
    }

    #[test]
    fn tab_completes_commands_and_the_guests_of_the_key() {
        let all = Permissions::all();
        let one = |allowed, guests, keys: &[u8]| lines(allowed, guests, &[keys, &[END]]);
        assert_eq!(one(all, None, b"ki\tbe\t\r"), ["kill beta "]);
        assert_eq!(one(all, None, b"kill a\tha\r"), ["kill alpha"], "they have `alp` in common");
        assert_eq!(one(all, Some(&["alpine"]), b"kill a\t\r"), ["kill alpine "]);
        assert_eq!(one(Permissions::OPERATE, None, b"kill b\t\r"), ["kill b"], "it may not see the guests");
    }

    #[test]
    fn lines_come_back_and_are_edited() {
        let typed: [&[u8]; 6] =
            [b"list x\x7f\x7f\r", b"show exits\r", b"\x1b[A\x1b[A\r", b"junk\x03", b"ab\x04c\r", b"\x04list\r"];
        let found = lines(Permissions::all(), None, &typed);
        assert_eq!(found, ["list", "show exits", "list", "", "abc"], "Ctrl-D ends it in an empty line only");
    }
}
