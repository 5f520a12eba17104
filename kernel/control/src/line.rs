//! Makes text lines from the bytes of a serial line. The length is limited.

use alloc::string::String;

use crate::no_memory::{NoMemory, OUT_OF_MEMORY};

/// Longest line that is read from COM2, in bytes, without its end.
pub const MAX_LINE: usize = 4096;

/// Why a line was dropped as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// It was longer than [`MAX_LINE`].
    TooLong,
    /// There was no memory for it.
    NoMemory,
}

impl core::fmt::Display for LineError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooLong => write!(f, "the line is longer than {MAX_LINE} bytes"),
            Self::NoMemory => write!(f, "{OUT_OF_MEMORY} while reading a line"),
        }
    }
}

/// Collects bytes until a line is complete. `\r`, `\n` or both end a line. Empty lines are skipped. Bytes that are not
/// UTF-8 become U+FFFD.
#[derive(Debug, Default)]
pub struct LineReader {
    bytes: heapless::Vec<u8, MAX_LINE>,
    too_long: bool,
}

impl LineReader {
    /// Makes an empty reader.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: heapless::Vec::new(), too_long: false }
    }

    /// Takes a byte. Returns a complete line without its end.
    pub fn push(&mut self, byte: u8) -> Option<Result<String, LineError>> {
        match byte {
            b'\r' | b'\n' if self.too_long => {
                self.too_long = false;
                Some(Err(LineError::TooLong))
            }
            b'\r' | b'\n' if self.bytes.is_empty() => None,
            b'\r' | b'\n' => {
                let line = lossy(&self.bytes).map_err(|NoMemory| LineError::NoMemory);
                self.bytes.clear();
                Some(line)
            }
            _ if self.too_long => None,
            _ => {
                if self.bytes.push(byte).is_err() {
                    self.bytes.clear();
                    self.too_long = true;
                }
                None
            }
        }
    }
}

/// Makes text of bytes. Bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// There is no memory.
pub fn lossy(bytes: &[u8]) -> Result<String, NoMemory> {
    let replaced = |chunk: &core::str::Utf8Chunk<'_>| if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
    let mut line = String::new();
    let len = bytes.utf8_chunks().map(|chunk| chunk.valid().len().saturating_add(replaced(&chunk).len())).sum();
    line.try_reserve_exact(len).map_err(|_| NoMemory)?;
    for chunk in bytes.utf8_chunks() {
        line.push_str(chunk.valid());
        line.push_str(replaced(&chunk));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Result<String, LineError>> {
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
        assert_eq!(lines(&input), [Err(LineError::TooLong), Ok("ok".into())]);
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        assert_eq!(lines(b"\xff\x80a\n"), [Ok("\u{fffd}\u{fffd}a".into())]);
    }
}
