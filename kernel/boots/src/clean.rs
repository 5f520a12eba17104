//! Text that may be anything, for a terminal: printable characters and ends of lines.

/// A character in the place of what a terminal might obey, or of what is no character.
const INSTEAD: char = '\u{fffd}';

/// The lines of a text that may be damaged, without control characters. A CR before the end of a line is left out.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = impl Iterator<Item = char>> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.split(|&byte| byte == b'\n').map(|line| characters(line.strip_suffix(b"\r").unwrap_or(line)))
}

/// The last lines of a text, at most so many.
#[must_use]
pub fn last_lines(bytes: &[u8], lines: usize) -> &[u8] {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let ends = text.iter().enumerate().rev().filter(|&(_, &byte)| byte == b'\n').map(|(at, _)| at);
    match ends.take(lines).nth(lines.saturating_sub(1)) {
        Some(end) => text.get(end.saturating_add(1)..).unwrap_or_default(),
        None => text,
    }
}

fn characters(bytes: &[u8]) -> impl Iterator<Item = char> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let good = chunk.valid().chars().map(|c| if c.is_control() || is_invisible(c) { INSTEAD } else { c });
        good.chain((!chunk.invalid().is_empty()).then_some(INSTEAD))
    })
}

/// Characters that change the direction of writing, or separate lines.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> Vec<String> {
        lines(bytes).map(Iterator::collect).collect()
    }

    #[test]
    fn lines_are_those_of_the_text() {
        assert_eq!(text(b"one\r\ntwo\n\nthree\n"), ["one", "two", "", "three"]);
        assert_eq!(text("a\u{1b}[2Jb\u{9b}c\u{7f}".as_bytes()), ["a\u{fffd}[2Jb\u{fffd}c\u{fffd}"]);
        assert_eq!(text(b"\xffa\xc3"), ["\u{fffd}a\u{fffd}"]);
        assert_eq!(text("gr\u{fc}n \u{202e}neurg".as_bytes()), ["gr\u{fc}n \u{fffd}neurg"]);
    }

    #[test]
    fn the_last_lines_are_whole() {
        let all = b"one\ntwo\nthree\n";
        assert_eq!(last_lines(all, 1), b"three");
        assert_eq!(last_lines(all, 2), b"two\nthree");
        assert_eq!(last_lines(all, 3), b"one\ntwo\nthree");
        assert_eq!(last_lines(all, 9), b"one\ntwo\nthree");
        assert_eq!(last_lines(b"", 2), b"");
    }

    proptest! {
        #[test]
        fn a_terminal_obeys_nothing_of_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for line in text(&bytes) {
                prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }
}
