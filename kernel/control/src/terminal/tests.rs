use proptest::prelude::*;

use super::*;

fn filtered(bytes: impl AsRef<[u8]>) -> String {
    let mut out = Vec::new();
    TerminalFilter::new().feed(bytes.as_ref(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text_and_movement_within_the_line_pass() {
    for text in [
        "plain\ttext\r\n",
        "Grüße, 世界 \u{1f980}\n",
        "\x1b[1m\x1b[31mred\x1b[0m \x1b[38;5;208morange\x1b[m",
        "a\x08b\x07",
        "\x1b[K\x1b[2K\x1b[10C\x1b[D\x1b[5G\x1b[3P\x1b[@\x1b[4X\x1b[J",
    ] {
        assert_eq!(filtered(text), text);
    }
    // What systemd writes when it starts a unit.
    assert_eq!(filtered("[\x1b[0;32m  OK  \x1b[0m] Started"), "[\x1b[0m\x1b[32m  OK  \x1b[0m] Started");
}

#[test]
fn what_changes_the_terminal_or_makes_it_answer_is_dropped() {
    for (bad, good) in [
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;aGk=\x1b\\b", "ab"),
        ("a\x1bP$qm\x1b\\b", "ab"),
        ("a\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\b", "ab"),
        ("a\x1b[6n\x1b[c\x1b[>c\x1b[0c\x1b[5n\x05b", "ab"),
        ("a\x1b[?1049h\x1b[?25l\x1b[2J\x1b[3J\x1b[1J\x1b[H\x1b[1;1H\x1b[A\x1b[10B\x1b[2Sb", "ab"),
        ("a\x1bc\x1b7\x1b8\x1bM\x1b=\x1b>\x1b(0\x1b)B\x1b%G\x1b#8\x0e\x0f\x0b\x0cb", "ab"),
        ("a\x1b[!p\x1b[4;1t\x1b[1\"q\x1b[1 qb", "ab"),
        ("a\x1b[99999999999999999999999999999999999999999999Cb\x1b[12345Cc", "abc"),
        ("a\x7fb", "ab"),
    ] {
        assert_eq!(filtered(bad), good, "{bad:?}");
    }
}

#[test]
fn no_guest_writes_in_reverse_or_on_a_background() {
    assert_eq!(filtered("\x1b[7msidecore> \x1b[27m"), "sidecore> ");
    assert_eq!(filtered("\x1b[1;7;31;47;107;48;5;7;4mx"), "\x1b[1m\x1b[31m\x1b[4mx");
    assert_eq!(filtered("\x1b[48;2;1;7;7;7mx"), "x");
    // Other ways to write the number.
    assert_eq!(filtered("\x1b[07;007;7:1;38:5:7;38;7mx"), "x");
}

#[test]
fn controls_of_eight_bits_and_bytes_that_are_no_text_are_replaced() {
    assert_eq!(filtered(b"a\x9b31mb"), "a\u{fffd}31mb");
    assert_eq!(filtered("a\u{9b}31mb\u{9d}c"), "a\u{fffd}31mb\u{fffd}c");
    assert_eq!(filtered(b"\xff\xc3(\xe2\x82"), "\u{fffd}\u{fffd}(");
    assert_eq!(filtered("a\u{202e}b\u{2028}"), "a\u{fffd}b\u{fffd}");
}

#[test]
fn a_sequence_that_is_cut_ends_and_a_string_without_end_ends_too() {
    assert_eq!(filtered("a\x1b[3\x18b\x1b[3\x1b[1mc"), "ab\x1b[1mc");
    let text = format!("\x1b]0;{}end", "x".repeat(STRING));
    assert!(filtered(text).ends_with("end"));
}

/// A model of a terminal in the strict sense: takes output apart again and fails at what must not be there.
fn check(out: &str) {
    let mut characters = out.chars();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            assert!(!is_deceptive(character), "{out:?}");
            assert!(character >= ' ' || "\x07\x08\t\n\r".contains(character), "{out:?}");
            continue;
        }
        assert_eq!(characters.next(), Some('['), "{out:?}");
        let sequence: String = characters.by_ref().take_while(|c| !c.is_ascii_alphabetic() && *c != '@').collect();
        assert!(sequence.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'), "{out:?}");
    }
}

proptest! {
    /// Whatever a guest writes, and however it is cut into pieces: only what is allowed comes out, and the same each time.
    #[test]
    fn only_what_is_allowed_comes_out(
        bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), proptest::sample::select(b"\x1b[]0123456789;:?mKJCDGHPX\\\x07\x18\xc2\x9b7".to_vec())],
            0..400,
        ),
        cut in 0..400_usize,
    ) {
        let whole = filtered(&bytes);
        check(&whole);
        let (a, b) = bytes.split_at(cut.min(bytes.len()));
        let (mut filter, mut out) = (TerminalFilter::new(), Vec::new());
        filter.feed(a, &mut out).unwrap();
        filter.feed(b, &mut out).unwrap();
        prop_assert_eq!(String::from_utf8(out).unwrap(), whole.clone());
        prop_assert!(!whole.contains("\x1b[7m"));
        // The room that the caller keeps.
        prop_assert!(whole.len() <= 4 * bytes.len() + 40, "{} of {}", whole.len(), bytes.len());
    }
}
