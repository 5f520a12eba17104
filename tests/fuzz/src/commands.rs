//! What an operator, a script and a guest's console send: lines of COM2, keys on COM1, and output of guests through the filter of
//! the operator's terminal. Lines are cut as they are here, a request that is read is the same when it is written and read again,
//! and nothing passes the filter but text, colours and movement within the line.

use control::{Action, Command, LineReader, MAX_LINE, Notice, Request, Sender, Shell, TerminalFilter};

use crate::input::Input;
use crate::planted::planted;

/// Most characters of a line that is typed.
const TYPED: usize = 200;
/// Pieces of lines.
const PIECES: [&[u8]; 37] = [
    b"{\"command\":\"",
    b"\"",
    b",",
    b":",
    b"}",
    b"\"id\":",
    b"\"who\":\"",
    b"\"address\":\"",
    b"\"guest\":\"",
    b"\"text\":\"",
    b"\"port\":\"",
    b"\"on\":true",
    b"start",
    b"stop",
    b"input",
    b"port",
    b"watch",
    b"list",
    b"attach ",
    b"--raw ",
    b"show ",
    b"exits",
    b" a",
    b"\r",
    b"\n",
    b"\\u00",
    b"7",
    b"\x1b[",
    b"\x1b]",
    b"\x1b[A",
    b"\x1b[38;5;",
    b"m",
    b"\x1b[7m",
    b"\x1b[2J",
    b"\xe2\x80\xae",
    b"\x7f",
    b"\t",
];

/// Bytes, most of them out of pieces.
fn text(input: &mut Input<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    while !input.is_empty() && text.len() < 2 * MAX_LINE {
        match input.byte() {
            piece @ 0..200 => text.extend(PIECES[usize::from(piece) % PIECES.len()]),
            200 => text.extend(vec![b'x'; input.within(0, MAX_LINE as u64 + 64) as usize]),
            _ => text.push(input.byte()),
        }
    }
    text
}

/// Runs one input.
///
/// # Panics
/// Something was read wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.byte() % 4;
    let whole_command = input.flag();
    let mut text = text(&mut input);
    if whole_command {
        let words = ["start", "input", "port", "counters", "watch"];
        let word = words[text.len() % words.len()];
        text.splice(0..0, format!("{{\"command\":\"{word}\",\"id\":{},\"guest\":\"", text.len()).into_bytes());
    }
    match kind {
        0 | 1 => lines(&text),
        2 => keys(&text),
        _ => output(&text),
    }
}

fn lines(text: &[u8]) {
    let mut reader = LineReader::new();
    let found: Vec<_> = text.iter().chain(b"\n").filter_map(|byte| reader.push(*byte)).collect();
    let pieces = text.split(|byte| matches!(byte, b'\r' | b'\n')).filter(|line| !line.is_empty());
    let expected = pieces.map(|line| (line.len() <= MAX_LINE).then(|| String::from_utf8_lossy(line).into_owned()));
    found.iter().filter_map(|line| line.as_ref().err()).for_each(|why| crate::is_line(&why.to_string()));
    let lines: Vec<_> = found.into_iter().map(Result::ok).collect();
    assert_eq!(lines, expected.collect::<Vec<_>>());
    for line in lines.into_iter().flatten() {
        // Not every line is a request, and few random ones are: each line is a text, too.
        let (guest, text, port) = (line.clone(), line.clone(), line.clone());
        let command = match line.len() % 17 {
            0 => Command::List,
            1 => Command::Start(guest),
            2 => Command::Stop(guest),
            3 => Command::Kill(guest),
            4 => Command::Restart(guest),
            5 => Command::PortInput { guest, port, text },
            6 => Command::Port { guest, port, open: text.len() % 24 < 12 },
            7 => Command::Watch(text.len() % 24 < 12),
            8 => [Command::Report, Command::Version, Command::Shutdown, Command::Reboot][line.len() / 13 % 4].clone(),
            9 => Command::Notice { what: Notice::ALL[line.len() / 13 % 3], line: guest, why: text },
            10 => Command::Put { module: guest, bytes: text.len() as u64, sha256: text },
            11 => Command::PutData { module: guest, at: u64::MAX - text.len() as u64, data: text },
            12 => {
                Command::Apply { dry: text.len() % 32 < 16, restart: true, module: guest, confirm: text.len() as u64 }
            }
            13 => Command::Follow { guest, on: text.len() % 34 < 17 },
            _ => Command::Input { guest, text },
        };
        let sender = if line.len().is_multiple_of(2) { Sender::new(&line, &line) } else { Sender::default() };
        let line_of = Request { id: Some(line.len() as u64), sender, command };
        for request in Request::from_line(&line).ok().into_iter().chain([line_of]) {
            let mut written = request.to_line();
            if planted() {
                written.insert(0, '\n');
            }
            let (last, body) = written.as_bytes().split_last().expect("a line is not empty");
            assert!(*last == b'\n' && body.iter().all(|byte| *byte >= b' '), "one line: {written:?}");
            assert_eq!(Request::from_line(&written).as_ref(), Ok(&request));
        }
        if let Err(error) = Command::from_words(&line) {
            assert!(!error.is_empty());
        }
    }
}

fn keys(text: &[u8]) {
    let (mut shell, mut out) = (Shell::new(), String::new());
    for byte in text {
        let attached = shell.attached().map(String::from);
        let action = shell.feed(*byte, &mut out).expect("a string takes everything");
        match (attached, action) {
            (Some(guest), Action::ToGuest(sent)) => assert_eq!((shell.attached(), sent), (Some(&*guest), *byte)),
            (Some(_), Action::Left) => assert_eq!((*byte, shell.attached()), (control::LEAVE_KEY, None)),
            (None, Action::Run(command)) => {
                let name = command.guest().unwrap_or_default();
                assert!(name.len() <= TYPED && name.bytes().all(|byte| byte.is_ascii_graphic()), "{command:?}");
                if let Command::Attach { guest, .. } = command {
                    shell.attach(guest, &mut out).expect("a string takes everything");
                }
            }
            (None, Action::Complete) => {
                let guests = ["alpha", "alpine", "a"];
                shell.complete(guests.into_iter(), &mut out).expect("a string takes everything");
            }
            (None, Action::None) => {}
            (attached, action) => panic!("{action:?} with {attached:?} attached"),
        }
        out.clear();
        shell.prompt(&mut out).expect("a string takes everything");
        if planted() {
            out.push('\x07');
        }
        let typed = out.rsplit_once("\x1b[0m ").map_or("", |(_, typed)| typed);
        assert!(typed.len() <= TYPED && typed.bytes().all(|byte| (b' '..0x7f).contains(&byte)), "{out:?}");
        out.clear();
    }
}

fn output(text: &[u8]) {
    let (mut filter, mut out) = (TerminalFilter::new(), Vec::new());
    filter.feed(text, &mut out).expect("there is memory");
    assert!(out.len() <= 4 * text.len() + 40, "{} bytes become {}", text.len(), out.len());
    let (mut other, mut in_parts) = (TerminalFilter::new(), Vec::new());
    for part in text.chunks(7) {
        other.feed(part, &mut in_parts).expect("there is memory");
    }
    assert!(out == in_parts, "output depends on how it is cut");
    if planted() {
        out.extend(b"\x1b[0;7m");
    }
    is_filtered(&out);
}

/// Checks output that has gone through the filter: there is nothing in it that changes a terminal for good, or makes it answer.
pub(crate) fn is_filtered(out: &[u8]) {
    let out = std::str::from_utf8(out).expect("what passes is text");
    let mut rest = out;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        if first == '\x1b' {
            let end =
                rest.find(|c: char| c.is_ascii() && ('@'..='~').contains(&c) && c != '[').expect("a whole sequence");
            let (parameters, last) = (rest[..end].strip_prefix('[').expect("a control sequence"), &rest[end..=end]);
            assert!(parameters.bytes().all(|byte| byte.is_ascii_digit() || byte == b';' || byte == b':'), "{out:?}");
            match last {
                "m" => colours(parameters),
                "J" => assert!(matches!(parameters, "" | "0"), "{out:?}"),
                _ => assert!("CDGK@PX".contains(last), "{out:?}"),
            }
            rest = &rest[end + 1..];
        } else {
            let turns = matches!(first, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            assert!(!turns && (!first.is_control() || "\x07\x08\t\n\r".contains(first)), "{first:?} in {out:?}");
        }
    }
}

/// No background and no reverse video.
fn colours(parameters: &str) {
    let mut numbers = parameters.split(';').map(|p| p.split(':').next().unwrap_or("").parse::<u32>().unwrap_or(0));
    while let Some(number) = numbers.next() {
        assert!(!matches!(number, 7 | 40..=48 | 100..=107), "{parameters:?}");
        // A colour of the letters by number, or by red, green and blue.
        if number == 38 && !parameters.contains(':') {
            let _ = match numbers.next() {
                Some(5) => numbers.next(),
                Some(2) => numbers.nth(2),
                _ => None,
            };
        }
    }
}

crate::planted::tests!(any_line_and_key_and_output_is_taken, 512, 0..400);
