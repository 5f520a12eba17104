//! Makes text lines from the bytes of a serial line. The length is limited.

use alloc::string::String;
use alloc::vec::Vec;

/// Longest line that is read from COM2, in bytes, without its end.
pub const MAX_LINE: usize = 4096;

/// A line was longer than [`MAX_LINE`]. The whole line was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl core::fmt::Display for TooLong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the line is longer than {MAX_LINE} bytes")
    }
}

/// Collects bytes until a line is complete. `\r`, `\n` or both end a line. Empty lines are skipped. Bytes that are not
/// UTF-8 become U+FFFD.
#[derive(Debug, Default)]
pub struct LineReader {
    bytes: Vec<u8>,
    too_long: bool,
}

impl LineReader {
    /// Makes an empty reader.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), too_long: false }
    }

    /// Takes a byte. Returns a complete line without its end.
    pub fn push(&mut self, byte: u8) -> Option<Result<String, TooLong>> {
        match byte {
            b'\r' | b'\n' if self.too_long => {
                self.too_long = false;
                Some(Err(TooLong))
            }
            b'\r' | b'\n' if self.bytes.is_empty() => None,
            b'\r' | b'\n' => {
                let line = String::from_utf8_lossy(&self.bytes).into_owned();
                self.bytes.clear();
                Some(Ok(line))
            }
            _ if self.too_long => None,
            _ if self.bytes.len() == MAX_LINE => {
                self.bytes.clear();
                self.too_long = true;
                None
            }
            _ => {
                self.bytes.push(byte);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Result<String, TooLong>> {
        let mut reader = LineReader::new();
        bytes.iter().filter_map(|&byte| reader.push(byte)).collect()
    }

    #[test]
    fn any_end_of_line_will_do_and_empty_lines_are_skipped() {
        assert_eq!(lines(b"a\r\nb\n\n\rc\rd"), [Ok("a".into()), Ok("b".into()), Ok("c".into())]);
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_the_next_is_read() {
        let mut input = std::vec![b'x'; MAX_LINE];
        input.extend(b"\n");
        assert!(matches!(lines(&input)[..], [Ok(_)]));
        let mut input = std::vec![b'x'; MAX_LINE + 1];
        input.extend(b"yyy\nok\n");
        assert_eq!(lines(&input), [Err(TooLong), Ok("ok".into())]);
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        assert_eq!(lines(b"\xff\x80a\n"), [Ok("\u{fffd}\u{fffd}a".into())]);
    }
}
