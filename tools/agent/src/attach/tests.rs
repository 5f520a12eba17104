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

/// What the guest had written before.
const EARLIER: &str = "boot\r\nlogin: ";

/// A hypervisor with the guests `a` and `b`. It answers input with output of both: the text, if it ends a line, and [`HOSTILE`] after
/// `hostile`, in two pieces. Returns what comes as input too.
fn guests() -> (PathBuf, Receiver<String>) {
    let (tell, told) = channel();
    let written = std::sync::atomic::AtomicU64::new(EARLIER.len() as u64);
    let socket = machine(move |request| {
        let to_line = |event: Event| event.to_line().unwrap();
        let (guest, text) = match &request.command {
            Command::Follow { guest, on: true } if guest == "a" => {
                let text = EARLIER.into();
                return vec![to_line(Event::Output { id: request.id, guest: guest.clone(), at: 0, text })];
            }
            Command::Follow { on: true, .. } => return vec![to_line(Event::refused(request.id, "no guest".into()))],
            Command::Follow { on: false, .. } => return vec![to_line(Event::done(request.id))],
            Command::Input { guest, text } => (guest, text),
            _ => panic!("{request:?}"),
        };
        assert_eq!(guest, "a");
        if text.starts_with('x') {
            return vec![to_line(Event::refused(request.id, "guest `a` is not running".into()))];
        }
        let _ = tell.send(text.clone());
        let output = |guest: &str, text: &str| {
            let mut at = 7;
            if guest == "a" {
                at = written.fetch_add(text.chars().count() as u64, std::sync::atomic::Ordering::Relaxed);
            }
            to_line(Event::Output { id: None, guest: guest.into(), at, text: text.into() })
        };
        let line = |text: &str| to_line(Event::Console { guest: "a".into(), line: text.into() });
        let mut lines = vec![output("b", "not of this guest"), line("a whole line, for others")];
        if let Some(line) = text.strip_suffix(['\r', '\n']) {
            lines.push(output("a", &format!("said {line}\r\n")));
        }
        if text.contains("hostile") {
            let (one, other) = HOSTILE.split_at(3);
            lines.extend([output("a", one), output("a", other)]);
        }
        if text.contains("lost") {
            written.fetch_add(9, std::sync::atomic::Ordering::Relaxed);
            // What was there before comes again, as to another client.
            lines.push(output("a", "behind"));
            lines.push(to_line(Event::Output { id: None, guest: "a".into(), at: 0, text: EARLIER.into() }));
        }
        lines.push(to_line(Event::done(request.id)));
        lines.push(output("a", "$ "));
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
    // The title begins in one piece and ends in another.
    assert!(out.contains("said hostile\r\nsidecore>\x1b[0m \x1b[31mred"), "{out:?}");
    assert!(!out.contains("not of this guest") && !out.contains("for others"), "{out:?}");
    let (_, out, _) = run(&socket, "attach --raw a", piped("hostile\n"));
    assert!(out.contains(&format!("said hostile\r\n{HOSTILE}")), "{out:?}");
}

#[test]
fn the_end_of_the_input_is_the_end_and_what_came_with_it_is_passed() {
    let (socket, told) = guests();
    let (exit, out, _) = run(&socket, "attach a", piped("one\ntwo"));
    assert_eq!((exit, next(&told)), (Exit::Done, "one\ntwo".to_owned()));
    assert!(!out.contains("Ctrl-]") && !out.contains("login: "), "it is for people: {out}");
    // A byte that is a key for a person is none in a script.
    run(&socket, "attach a", piped("\x1d!\n"));
    assert_eq!(next(&told), "\x1d!\n");
    assert_eq!(run(&socket, "attach c", piped("x")), (Exit::Refused, String::new(), "no guest\n".to_owned()));
}

#[test]
fn what_is_missing_is_told_and_nothing_is_shown_twice() {
    let (socket, _told) = guests();
    let (_, out, errors) = run(&socket, "attach a", piped("lost\n"));
    assert_eq!(errors, "(here 9 bytes are missing)\n");
    assert!(out.starts_with("said lost\r\nbehind") && !out.contains("login"), "{out:?}");
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
    assert_eq!(next(&told), "uptime\n");
    assert!(out.contains("said uptime\r\n"), "{out:?}");
}

#[test]
fn at_a_terminal_each_key_goes_to_the_guest_at_once_and_is_shown_by_nobody_else() {
    let (socket, told) = guests();
    let (mut person, terminal, running) = at_terminal(socket, "attach a");
    // The line without an end is there at once.
    person.sees("attached to a; Ctrl-] leaves.");
    person.sees("login: ");
    assert!(is_raw(&terminal));
    for key in ["l", "\x03", "\x04", "\x1a", "\u{e9}", "\t"] {
        person.types(key.as_bytes());
        assert_eq!(next(&told), key);
        person.sees("$ ");
    }
    person.types(b"secret\r");
    assert_eq!(next(&told), "secret\r");
    let seen = person.reads("said ");
    assert!(!seen.contains("secret") && !seen.contains('\u{e9}'), "{seen:?}");
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

    /// However the pieces are cut, and whatever comes twice: what is shown is what the filter makes of the whole.
    #[test]
    fn nothing_gets_through_the_filter_between_two_pieces(text in "(\\PC|[\x00-\x1f\u{80}-\u{9f}]){0,40}", cut in 1_usize..9) {
        let bytes = text.as_bytes();
        let (mut out, mut errors) = (Vec::new(), Vec::new());
        let filter = Some(TerminalFilter::new());
        let mut screen =
            Screen { guest: "a", out: &mut out, errors: &mut errors, filter, position: 0, is_person: false };
        for (number, piece) in bytes.chunks(cut).enumerate() {
            let text: String = piece.iter().map(|&byte| char::from(byte)).collect();
            let at = (number * cut) as u64;
            screen.output(at, &text).unwrap();
            screen.output(at, &text).unwrap();
        }
        let mut whole = Vec::new();
        TerminalFilter::new().feed(bytes, &mut whole).unwrap();
        prop_assert_eq!(&out, &whole);
        prop_assert!(errors.is_empty());
        let shown = String::from_utf8_lossy(&out).into_owned();
        let colours_and_more = shown.split('\x1b').skip(1).all(|rest| rest.starts_with('['));
        prop_assert!(colours_and_more && !shown.contains(['\0', '\x05', '\x0e', '\x18', '\u{9b}']), "{:?}", shown);
    }
}
