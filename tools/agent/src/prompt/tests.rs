//! Tests of the prompt, by a person at a terminal and a machine that answers as it is told.

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
