//! Tests of `top`, by a person at a terminal and a machine that answers as it is told.

use std::fs::File;
use std::path::Path;
use std::thread;

use control::{Counters, Guest, Permissions};

use super::*;
use crate::broker::tests::machine;
use crate::shell::{Exit, Shell};
use crate::terminal::tests::{is_raw, person};

/// Runs `top` at a terminal, with a key that is bound to these guests, against a machine with two. Types `keys` once the picture
/// shows something of a guest. Returns all that was shown until then.
fn run(guests: Option<&[&str]>, keys: &[u8]) -> String {
    let guests = guests.map(|guests| guests.iter().map(|guest| (*guest).to_owned()).collect());
    let socket = machine(|request| {
        assert_eq!(request.command, Command::Show(View::Counters));
        let guest = |name: &str| Guest { name: name.into(), ..Guest::default() };
        let guests = ["alpha", "omega"].map(guest).into();
        let counters = Counters { id: request.id, tsc_hz: 1_000_000, guests, ..Counters::default() };
        vec![Event::Counters(counters).to_line().unwrap()]
    });
    let (mut person, program) = person();
    let terminal = program.try_clone().unwrap();
    let running = thread::spawn(move || {
        let key = Key::new("anna", "", Permissions::all(), guests);
        let broker = Broker { socket, sender: key.sender() };
        let shell = Shell { broker: &broker, trace_port: Path::new("/nonexistent"), key: &key };
        let mut out = File::from(program.try_clone().unwrap());
        shell.run("top", false, &mut Input::new(program), &mut out, &mut std::io::sink())
    });
    // The other screen, and a picture.
    person.sees("\x1b[?1049h");
    let before = person.reads("alpha");
    assert!(is_raw(&terminal));
    person.types(keys);
    let after = person.reads(LEAVE_TOP);
    assert_eq!(running.join().unwrap(), Exit::Done);
    assert!(!is_raw(&terminal));
    before + &after
}

#[test]
fn a_person_sees_the_picture_until_a_key_ends_it() {
    assert!(run(None, b"jzq").contains("omega"));
    assert!(run(None, b"\x03").contains("omega"), "Ctrl-C ends it too");
    assert!(!run(Some(&["alpha"]), b"jjkq").contains("omega"), "the guest of another key");
}

#[test]
fn it_needs_a_terminal_and_says_so() {
    let key = Key::new("anna", "", Permissions::all(), None);
    let broker = Broker { socket: "/nonexistent".into(), sender: key.sender() };
    let shell = Shell { broker: &broker, trace_port: Path::new("/nonexistent"), key: &key };
    let (from, _to) = std::io::pipe().unwrap();
    let mut errors = Vec::new();
    let exit = shell.run("top", false, &mut Input::new(from.into()), &mut std::io::sink(), &mut errors);
    assert_eq!(
        (exit, String::from_utf8(errors).unwrap().as_str()),
        (Exit::Usage, "`top` needs a terminal: `ssh -t HOST top`\n")
    );
}
