use core::iter::once;

use proptest::prelude::*;

use super::*;
use crate::{Class, Event, LineReader, Shell, TerminalFilter};

type Small = Output<256, 4096>;

/// Both ends of a shared port.
struct Port {
    people: Small,
    programs: Small,
    shared: SharedOutput,
    prompt: Prompt,
    /// What the UART has taken.
    sent: Vec<u8>,
    /// What of it is people's.
    shown: Vec<u8>,
}

impl Port {
    fn new() -> Self {
        let output = || Small::new(4096);
        Self {
            people: output(),
            programs: output(),
            shared: SharedOutput::new(),
            prompt: Prompt::new(),
            sent: Vec::new(),
            shown: Vec::new(),
        }
    }

    fn say(&mut self, text: &str) {
        assert!(self.people.push(Class::Event, without_mark(once(text.as_bytes()))));
    }

    fn tell(&mut self, line: &str) {
        assert!(self.programs.push(Class::Event, once(format!("{line}\n").as_bytes())));
    }

    /// A tick in which the UART takes so many bytes.
    fn tick(&mut self, mut takes: usize) {
        self.people.begin_tick(1000);
        self.programs.begin_tick(1000);
        let Self { people, programs, shared, prompt, sent, shown } = self;
        shared.pump(people, programs, prompt, |whose, bytes| {
            let taken = bytes.len().min(takes);
            takes -= taken;
            sent.extend_from_slice(&bytes[..taken]);
            if whose == Whose::People {
                shown.extend_from_slice(&bytes[..taken]);
            }
            taken
        });
    }

    fn sent(&self) -> &str {
        core::str::from_utf8(&self.sent).unwrap()
    }

    /// The lines of JSON that a program picks out of what was sent.
    fn records(&self) -> Vec<String> {
        let lines = self.sent.split(|byte| matches!(byte, b'\r' | b'\n'));
        lines.filter_map(record).map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
    }
}

#[test]
fn a_line_of_json_is_marked_and_has_a_line_of_its_own() {
    let mut port = Port::new();
    port.say("guest a: running\r\n");
    port.tell("{\"a\":1}");
    port.say("more\r\n");
    port.tick(1000);
    assert_eq!(port.sent(), "guest a: running\r\n\x1e{\"a\":1}\r\nmore\r\n");
    assert_eq!(port.shown, b"guest a: running\r\nmore\r\n", "the screen has people's text alone");
}

#[test]
fn both_take_turns_a_line_each() {
    let mut port = Port::new();
    port.say("1\r\n2\r\n3\r\n");
    (0..3).for_each(|n| port.tell(&n.to_string()));
    port.tick(1000);
    assert_eq!(port.sent(), "1\r\n\x1e0\r\n2\r\n\x1e1\r\n3\r\n\x1e2\r\n");
}

#[test]
fn json_erases_the_prompt_and_the_typed_line_comes_back_whole() {
    let (mut port, mut shell) = (Port::new(), Shell::new());
    let mut terminal = crate::screen_of::terminal();
    let show = |port: &mut Port, shell: &Shell| {
        let mut out = String::new();
        shell.prompt(&mut out).unwrap();
        port.say(&out);
        port.prompt.shown();
    };
    show(&mut port, &shell);
    for (n, byte) in b"start al".iter().enumerate() {
        if port.prompt.is_missing() {
            show(&mut port, &shell);
        }
        let mut echo = String::new();
        shell.feed(*byte, &mut echo).unwrap();
        port.say(&echo);
        if n == 3 {
            port.tell("{\"event\":\"x\"}");
        }
        port.tick(1000);
    }
    terminal.process(&port.sent);
    assert_eq!(terminal.screen().contents(), "{\"event\":\"x\"}\nsidecore> start al");
    assert_eq!(port.records(), ["{\"event\":\"x\"}"]);
    // The screen has no JSON, and the same prompt.
    let mut screen = crate::screen_of::terminal();
    screen.process(&port.shown);
    assert_eq!(screen.screen().contents(), "sidecore> start al");
}

#[test]
fn json_begins_a_new_line_behind_text_without_end() {
    let mut port = Port::new();
    port.say("login: ");
    port.tick(1000);
    port.tell("{}");
    port.tick(1000);
    port.say("root");
    port.tick(1000);
    assert_eq!(port.sent(), "login: \r\n\x1e{}\r\nroot");
}

#[test]
fn text_without_any_end_of_line_holds_json_for_a_while_only() {
    let mut port = Port::new();
    port.tell("{\"answer\":1}");
    for _ in 0..2 * LONGEST / 16 {
        port.say(&"x".repeat(16));
        port.say("y");
        port.tick(16);
    }
    assert!(!port.people.is_empty(), "there was always more text");
    assert_eq!(port.records(), ["{\"answer\":1}"]);
    let before = port.sent.iter().position(|&byte| byte == RECORD).unwrap();
    assert!(before <= LONGEST + 32, "{before}");
}

#[test]
fn people_s_text_has_no_mark_whatever_a_guest_writes() {
    let hostile = "\x1e{\"event\":\"end\",\"reason\":\"x\"}\r\n\x1e";
    let mut port = Port::new();
    port.say(hostile);
    port.people.print(format_args!("{hostile}\n"));
    let mut filtered = Vec::new();
    TerminalFilter::new().feed(hostile.as_bytes(), &mut filtered).unwrap();
    assert!(!filtered.contains(&RECORD), "the filter of the operator's terminal drops it too");
    port.tick(1000);
    assert!(port.sent().contains("{\"event\":\"end\""));
    assert_eq!(port.records(), [""; 0]);
}

#[test]
fn no_line_of_json_has_the_mark_inside() {
    let hostile = || "a\x1e{}\u{1e}\r\n".to_owned();
    let event = Event::Console { guest: "a".into(), line: hostile() };
    for line in [event.to_line().unwrap(), Event::refused(None, hostile().into()).to_line().unwrap()] {
        assert!(!line.bytes().any(|byte| byte == RECORD), "{line:?}");
    }
    let mut panic = String::new();
    crate::write_panic(&mut panic, &hostile(), &hostile(), once(hostile())).unwrap();
    assert!(!panic.bytes().any(|byte| byte == RECORD), "{panic:?}");
}

#[test]
fn a_line_that_a_panic_has_cut_keeps_nobody_waiting() {
    let mut port = Port::new();
    assert!(port.programs.push(Class::Event, once(&b"{\"event\":"[..])));
    port.tick(1000);
    port.say("panic\r\n");
    port.tick(1000);
    // The panic's own event comes in pieces.
    for piece in ["{\"event\":", "\"panic\"", "}\n"] {
        assert!(port.programs.push(Class::Event, once(piece.as_bytes())));
        port.tick(1000);
    }
    assert_eq!(port.sent(), "\x1e{\"event\":\r\npanic\r\n\x1e{\"event\":\"panic\"}\r\n");
}

/// What people have typed, and the lines of programs.
fn split(bytes: &[u8]) -> (String, Vec<String>) {
    let (mut input, mut reader) = (SharedInput::new(), LineReader::new());
    let (mut typed, mut lines) = (Vec::new(), Vec::new());
    for &byte in bytes {
        match input.take(byte) {
            Received::People(byte) => typed.push(byte),
            Received::Programs(byte) => lines.extend(reader.push(byte).map(Result::unwrap)),
            Received::Nothing => {}
        }
    }
    (String::from_utf8_lossy(&typed).into_owned(), lines)
}

#[test]
fn a_command_may_come_in_the_middle_of_a_typed_line() {
    for end in ["\n", "\r", "\r\n"] {
        let (typed, lines) = split(format!("li\x1e{{\"command\":\"list\"}}{end}st\r").as_bytes());
        assert_eq!((typed.as_str(), lines), ("list\r", vec!["{\"command\":\"list\"}".to_owned()]));
    }
}

#[test]
fn a_line_without_end_ends_at_the_next_or_at_a_key() {
    assert_eq!(split(b"\x1e{1\x1e{2}\nx\n"), ("x\n".into(), vec!["{1".into(), "{2}".into()]));
    assert_eq!(split(b"\x1e{1\x03list\r"), ("list\r".into(), vec!["{1".into()]));
    assert_eq!(split(b"\x1e{\t1}\x1b[Alist\r\n"), ("[Alist\r\n".into(), vec!["{\t1}".into()]));
    assert_eq!(split(b"\x1e\x1e\nlist\r\n"), ("list\r\n".into(), vec![]));
}

#[test]
fn json_is_what_is_behind_the_last_mark_of_a_line() {
    assert_eq!(record(b"sidecore> \x1e{cut\x1e{}"), Some(&b"{}"[..]));
    assert_eq!(record(b"{\"event\":\"end\"}"), None);
    assert_eq!(record(b"\x1e"), Some(&b""[..]));
}

proptest! {
    /// Whatever people's text is and however the UART takes it: each line of JSON arrives once, whole and in order, nothing else
    /// looks like one, and people's text loses nothing but marks.
    #[test]
    fn records_arrive_whole_and_text_stays_text(
        steps in proptest::collection::vec(
            (
                proptest::option::of(proptest::collection::vec(
                    prop_oneof![any::<u8>(), proptest::sample::select(vec![RECORD, b'\n', b'{'])], 0..30)),
                any::<bool>(), any::<bool>(), 0..40_usize,
            ), 0..60),
    ) {
        let mut port = Port::new();
        let (mut told, mut said) = (Vec::new(), Vec::new());
        for (number, (text, tells, prompts, takes)) in steps.into_iter().enumerate() {
            if let Some(text) = text && port.people.push(Class::Event, without_mark(once(&text[..]))) {
                said.extend(text.into_iter().filter(|&byte| byte != RECORD));
            }
            if prompts && port.people.is_empty() {
                port.prompt.shown();
            }
            if tells {
                told.push(format!("{{\"n\":{number}}}"));
                port.tell(told.last().unwrap());
            }
            port.tick(takes);
        }
        for _ in 0..10_000 {
            port.tick(3);
        }
        prop_assert!(port.people.is_empty() && port.programs.is_empty());
        prop_assert_eq!(port.records(), told);
        prop_assert_eq!(port.shown, said);
    }

    /// Whatever comes in: each byte is somebody's, and no byte of a command reaches the shell.
    #[test]
    fn typed_bytes_and_commands_do_not_mix(
        parts in proptest::collection::vec(("[ -~\t]{0,20}", any::<bool>()), 0..20),
    ) {
        let mut bytes = Vec::new();
        let (mut typed, mut lines) = (String::new(), Vec::new());
        for (text, is_command) in parts {
            if is_command {
                bytes.extend(format!("\x1e{text}\n").into_bytes());
                lines.extend((!text.is_empty()).then_some(text));
            } else {
                typed += &text;
                bytes.extend(text.into_bytes());
            }
        }
        prop_assert_eq!(split(&bytes), (typed, lines));
    }
}
