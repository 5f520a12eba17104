//! Text of logs, and what a log may say when it is read again.

use boots::{clean, cper};

use super::inflate;
use crate::input::Input;
use crate::planted::planted;

/// Bytes, most of them few values: lines and characters of more than one byte.
pub fn text(input: &mut Input<'_>, most: u64) -> Vec<u8> {
    const PIECES: [&[u8]; 16] = [
        b"\n",
        b"\r\n",
        b"\x1b[2J",
        "\u{202e}".as_bytes(),
        "\u{fc}".as_bytes(),
        b"\xe2\x80",
        b"\xf0\x9f\x98",
        b"\xff",
        b"a line\n",
        b"\r",
        "\u{9b}".as_bytes(),
        "\u{2028}".as_bytes(),
        "\u{1f600}".as_bytes(),
        b"\0",
        b"\x7f",
        b"x",
    ];
    let mut bytes = Vec::new();
    for _ in 0..input.within(0, most) {
        match input.byte() {
            piece @ 0..224 => bytes.extend_from_slice(PIECES[usize::from(piece) % PIECES.len()]),
            _ => bytes.push(input.byte()),
        }
    }
    bytes
}

/// Checks what is shown of a text that may be anything, as the report has it.
pub fn shown(text: &[u8]) {
    const LINES: usize = 16;
    let last = clean::last_lines(text, LINES);
    assert!(text.strip_suffix(b"\n").unwrap_or(text).ends_with(last), "the last lines are the end of the text");
    let whole: Vec<&[u8]> = text.strip_suffix(b"\n").unwrap_or(text).split(|&byte| byte == b'\n').collect();
    let expected = whole[whole.len().saturating_sub(LINES)..].join(&b'\n');
    assert_eq!(last, expected, "the last lines");
    let lines: Vec<String> = clean::lines(last).map(Iterator::collect).collect();
    assert!(lines.len() <= LINES);
    // A line feed at the end of the last line is no line of its own.
    let pieces = last.strip_suffix(b"\n").unwrap_or(last).split(|&byte| byte == b'\n');
    for (line, piece) in lines.iter().zip(pieces.clone()) {
        let obeys = |c: char| {
            c.is_control()
                || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!line.contains(obeys), "{line:?}");
        let piece = String::from_utf8_lossy(piece.strip_suffix(b"\r").unwrap_or(piece)).replace(obeys, "\u{fffd}");
        assert_eq!(*line, piece);
    }
    assert_eq!(lines.len(), pieces.count());
}

/// Compares what is made of a compressed log with the second decoder.
pub fn packed_log(body: &[u8], room_len: usize) {
    let found = cper::Found { creator: cper::PSTORE, section: cper::PACKED_LOG, body };
    let mut room = vec![0; room_len];
    let expected = inflate::inflate(body, room_len);
    let mut got = found.text(&mut room).map(<[u8]>::to_vec);
    if planted()
        && let Some(text) = &mut got
    {
        text.push(b'!');
    }
    match expected {
        inflate::Unpacked::Whole(text) | inflate::Unpacked::More(text) => assert_eq!(got, Some(text)),
        inflate::Unpacked::Bad(text) => {
            // What is wrong comes behind the end of the room, and may be seen or not.
            let is_full = text.len() == room_len;
            assert!(got.is_none() || is_full && got == Some(text), "it is damaged");
        }
    }
    if let Some(text) = found.text(&mut room) {
        shown(text);
    }
}
