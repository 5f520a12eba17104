//! Tests of a guest's console by ssh, against a hypervisor whose guest `a` answers as it is told.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use control::Permissions;
use proptest::prelude::*;

use super::*;
use crate::broker::tests::machine;
use crate::key::Key;
use crate::shell::{Exit, Shell};
use crate::terminal::tests::{Person, is_raw, person};

/// A line that would change the operator's terminal: its title, a question, reverse video, another screen.
const HOSTILE: &str = "\x1b]0;title\x07\x1b[6n\x1b[7msidecore>\x1b[0m \x1b[?1049h\x1b[31mred";

/// A hypervisor with the guests `a` and `b`. It answers input with lines of both: the text, if it is a whole line, and [`HOSTILE`]
/// after `hostile`. Returns what comes as input too.
fn guests() -> (PathBuf, Receiver<String>) {
    let (tell, told) = channel();
    let socket = machine(move |request| {
        let Command::Input { guest, text } = &request.command else { panic!("{request:?}") };
        if guest != "a" {
            return vec![Event::refused(request.id, "no guest".into()).to_line().unwrap()];
        }
        if text.starts_with('x') {
            return vec![Event::refused(request.id, "guest `a` is not running".into()).to_line().unwrap()];
        }
        let _ = tell.send(text.clone());
        let console =
            |guest: &str, line: &str| Event::Console { guest: guest.into(), line: line.into() }.to_line().unwrap();
        let mut lines = vec![console("b", "not of this guest")];
        if let Some(line) = text.strip_suffix(['\r', '\n']) {
            lines.push(console("a", &format!("said {line}")));
        }
        if text.contains("hostile") {
            lines.push(console("a", HOSTILE));
        }
        lines.push(Event::done(request.id).to_line().unwrap());
        lines.push(console("a", "after the answer"));
        lines
    });
    (socket, told)
}

/// Runs a command of a login whose input is this. Returns how it ended, its output and what it says besides.
fn run(socket: &Path, line: &str, mut input: Input) -> (Exit, String, String) {
    let key = Key::new("anna", "10.0.0.5", Permissions::all(), None);
    let broker = Broker { socket: socket.into(), sender: key.sender() };
    let shell = Shell { broker: &broker, trace_port: Path::new("/nonexistent"), key: &key };
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    let exit = match line {
        "" => shell.interact(&mut input, &mut out, &mut errors),
        line => shell.run(line, false, &mut input, &mut out, &mut errors),
    };
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(errors).unwrap())
}

/// The same at a terminal. Returns the person before it, the terminal, and the thread.
fn at_terminal(socket: PathBuf, line: &'static str) -> (Person, std::os::fd::OwnedFd, thread::JoinHandle<Exit>) {
    let (person, program) = person();
    let (terminal, mut out) = (program.try_clone().unwrap(), std::fs::File::from(program.try_clone().unwrap()));
    let thread = thread::spawn(move || {
        let key = Key::new("anna", "", Permissions::all(), None);
        let broker = Broker { socket, sender: key.sender() };
        let shell = Shell { broker: &broker, trace_port: Path::new("/nonexistent"), key: &key };
        let (mut input, mut errors) = (Input::new(program), out.try_clone().unwrap());
        match line {
            "" => shell.interact(&mut input, &mut out, &mut errors),
            line => shell.run(line, false, &mut input, &mut out, &mut errors),
        }
    });
    (person, terminal, thread)
}

fn piped(text: &str) -> Input {
    let (from, mut to) = io::pipe().unwrap();
    to.write_all(text.as_bytes()).unwrap();
    Input::new(from.into())
}

fn next(told: &Receiver<String>) -> String {
    told.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn a_guest_cannot_do_what_it_likes_to_the_terminal_unless_the_operator_wants_it() {
    let (socket, _told) = guests();
    let (exit, out, errors) = run(&socket, "attach a", piped("hostile\n"));
    assert_eq!((exit, errors.as_str()), (Exit::Done, ""));
    assert!(out.contains("said hostile\nsidecore>\x1b[0m \x1b[31mred\n"), "{out:?}");
    assert!(!out.contains("not of this guest"), "{out:?}");
    let (_, out, _) = run(&socket, "attach --raw a", piped("hostile\n"));
    assert!(out.contains(&format!("said hostile\n{HOSTILE}\n")), "{out:?}");
}

#[test]
fn the_end_of_the_input_is_the_end_and_what_came_with_it_is_passed() {
    let (socket, told) = guests();
    let (exit, out, _) = run(&socket, "attach a", piped("one\ntwo"));
    assert_eq!((exit, next(&told), next(&told)), (Exit::Done, String::new(), "one\ntwo".to_owned()));
    assert!(!out.contains("Ctrl-]"), "it is for people: {out}");
    // A byte that is a key for a person is none in a script.
    run(&socket, "attach a", piped("\x1d!\n"));
    assert_eq!((next(&told), next(&told)), (String::new(), "\x1d!\n".to_owned()));
    assert_eq!(run(&socket, "attach c", piped("x")), (Exit::Refused, String::new(), "no guest\n".to_owned()));
}

#[test]
fn what_the_guest_does_not_take_is_told_once() {
    let (socket, _told) = guests();
    let (from, mut to) = io::pipe().unwrap();
    let typing = thread::spawn(move || {
        for _ in 0..5 {
            to.write_all(b"x").unwrap();
            thread::sleep(Duration::from_millis(20));
        }
    });
    let (exit, _, errors) = run(&socket, "attach a", Input::new(from.into()));
    typing.join().unwrap();
    assert_eq!((exit, errors.as_str()), (Exit::Done, "guest `a` is not running\n"));
}

#[test]
fn a_script_of_commands_may_attach() {
    let (socket, told) = guests();
    let (exit, out, errors) = run(&socket, "", piped("attach a\nuptime\n"));
    assert_eq!((exit, errors.as_str()), (Exit::Done, ""));
    assert_eq!((next(&told), next(&told)), (String::new(), "uptime\n".to_owned()));
    assert!(out.contains("said uptime\n"), "{out:?}");
}

#[test]
fn at_a_terminal_each_key_goes_to_the_guest_at_once_and_one_leaves() {
    let (socket, told) = guests();
    let (mut person, terminal, running) = at_terminal(socket, "attach a");
    person.sees("attached to a; Ctrl-] leaves. Its output is shown by whole lines.\r\n");
    assert_eq!(next(&told), "");
    assert!(is_raw(&terminal));
    for key in ["l", "\x03", "\x04", "\x1a", "\u{e9}", "\t"] {
        person.types(key.as_bytes());
        assert_eq!(next(&told), key);
    }
    // What is typed is seen before the guest has written a line.
    person.types(b"k");
    assert_eq!(next(&told), "k");
    person.sees("\u{e9}k");
    person.types(b"\r");
    assert_eq!(next(&told), "\r");
    person.sees("said \r\n");
    person.types(b"ab\x1dnot for the guest");
    person.sees("left a\r\n");
    assert_eq!(running.join().unwrap(), Exit::Done);
    assert_eq!(told.try_iter().collect::<String>(), "ab");
    assert!(!is_raw(&terminal), "the terminal is as before");
}

#[test]
fn in_a_login_without_a_command_attach_comes_back_to_the_prompt() {
    let (socket, told) = guests();
    let (mut person, terminal, running) = at_terminal(socket, "");
    person.sees("sidecore>");
    person.types(b"attach a\r");
    person.sees("attached to a");
    person.types(b"uptime\r");
    person.sees("said uptime\r\n");
    assert!(is_raw(&terminal));
    person.types(&[LEAVE_KEY]);
    person.sees("left a\r\n");
    person.sees("sidecore>");
    // The line before, by the history: with its end it is another command.
    person.types(b"\x1b[A\x15exit\r");
    assert_eq!(running.join().unwrap(), Exit::Done);
    assert!(!is_raw(&terminal));
    assert_eq!(told.try_iter().collect::<String>(), "uptime\r");
}

#[test]
fn typed_text_is_shown_without_what_keys_send_besides() {
    let mut typed = Typed::default();
    for (keys, shown) in [
        ("ls\x1b[A\x1bOP\x1bx -l", "ls -l"),
        ("\x7f\x08a\t", "ls a"),
        ("\x15b", "b"),
        ("\r", ""),
        (&"\u{e9}".repeat(200), &"\u{e9}".repeat(SHOWN)),
        ("\x03", ""),
    ] {
        typed.take(keys);
        assert_eq!(typed.shown(), shown);
    }
}

proptest! {
    #[test]
    fn characters_are_the_same_in_whatever_pieces_they_come(bytes: Vec<u8>, text in "\\PC{0,20}", cut in 1_usize..7) {
        for bytes in [bytes, text.into_bytes()] {
            let (mut characters, mut all) = (Characters::default(), String::new());
            for piece in bytes.chunks(cut) {
                all.push_str(&characters.take(piece, false));
            }
            all.push_str(&characters.take(&[], true));
            prop_assert_eq!(all, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn no_line_gets_through_the_filter_with_a_control(line in "(\\PC|[\x00-\x1f\u{80}-\u{9f}]){0,40}") {
        let mut out = Vec::new();
        let (filter, typed) = (Some(TerminalFilter::new()), Typed::default());
        let mut screen = Screen { guest: "a", out: &mut out, filter, typed, is_person: false };
        screen.line(line).unwrap();
        let shown = String::from_utf8(out).unwrap();
        let colours_and_more = shown.split('\x1b').skip(1).all(|rest| rest.starts_with('['));
        prop_assert!(colours_and_more && !shown.contains(['\0', '\x05', '\x0e', '\x18', '\u{9b}']), "{shown:?}");
    }
}
