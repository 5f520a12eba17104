//! The part of a stream between two marks.
//!
//! A serial port of a machine in the first-level Linux is a stream that outlives the machine. Lines before and after each run mark
//! where its bytes begin and end.

use std::io::{self, Read};

/// Bytes that are read at a time.
const CHUNK: usize = 4096;

/// The line at the beginning or the end of a run.
pub fn mark(number: u32, word: &str) -> Vec<u8> {
    format!("\x1crun {number} {word}\n").into_bytes()
}

/// Reads a stream up to and with its first bytes that equal `mark`, and drops them.
///
/// # Errors
/// The stream cannot be read, or ends before the mark.
pub fn skip_past(stream: &mut impl Read, mark: &[u8]) -> io::Result<()> {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(mark) {
        stream.read_exact(&mut byte)?;
        seen.extend(byte);
    }
    Ok(())
}

/// A stream that ends before its first bytes that equal the mark.
pub struct Marked<R> {
    stream: R,
    mark: Vec<u8>,
    /// Bytes that were read from the stream and not given away.
    held: Vec<u8>,
    /// The mark or the stream's own end was seen. All of `held` is before it.
    over: bool,
}

impl<R: Read> Marked<R> {
    /// The part of `stream` before `mark`, which is not empty.
    pub fn new(stream: R, mark: &[u8]) -> Self {
        Self { stream, mark: mark.to_owned(), held: Vec::new(), over: false }
    }

    /// The number of held bytes that are certainly before the mark.
    fn certain(&self) -> usize {
        if self.over {
            return self.held.len();
        }
        let longest = self.held.len().min(self.mark.len());
        let begun = (1..=longest).rev().find(|&length| self.held.ends_with(&self.mark[..length]));
        self.held.len() - begun.unwrap_or(0)
    }
}

impl<R: Read> Read for Marked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.certain() == 0 && !self.over {
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut chunk) {
                Ok(0) => self.over = true,
                Ok(length) => self.held.extend(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(at) = self.held.windows(self.mark.len()).position(|part| part == self.mark) {
                self.held.truncate(at);
                self.over = true;
            }
        }
        let length = self.certain().min(buffer.len());
        buffer[..length].copy_from_slice(&self.held[..length]);
        self.held.drain(..length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A stream that gives its pieces one by one.
    struct Pieces(VecDeque<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().unwrap_or_default();
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn all(pieces: &[&'static [u8]]) -> Vec<u8> {
        let mut read = Vec::new();
        Marked::new(Pieces(pieces.iter().copied().collect()), b"run 7 ends\r\n").read_to_end(&mut read).unwrap();
        read
    }

    #[test]
    fn it_ends_before_the_mark_however_it_arrives() {
        assert_eq!(all(&[b"one\ntwo", b"run 7 ends\r\nlater"]), b"one\ntwo");
        assert_eq!(all(&[b"one\nrun 7", b" en", b"ds\r", b"\nlater"]), b"one\n");
        assert_eq!(all(&[b"run 7 ends\r\n"]), b"");
    }

    #[test]
    fn what_only_begins_like_the_mark_is_kept() {
        assert_eq!(all(&[b"run 7", b" enter", b"run run 7 ends\r\n"]), b"run 7 enterrun ");
        assert_eq!(all(&[b"run 6 ends\r\n", b"run 7 end"]), b"run 6 ends\r\nrun 7 end");
    }

    #[test]
    fn a_byte_that_cannot_belong_to_the_mark_is_given_at_once() {
        let mut marked = Marked::new(Pieces([&b"{}\nrun"[..], b" x"].into()), b"run 7 ends\r\n");
        let mut buffer = [0; 16];
        assert_eq!(marked.read(&mut buffer).unwrap(), 3);
        assert_eq!(marked.read(&mut buffer).unwrap(), 5);
    }

    #[test]
    fn what_is_before_the_first_mark_is_dropped_and_a_stream_without_it_is_an_error() {
        let mut stream = &b"old\nrun 6 ends\nrun 7 begins\nnew"[..];
        skip_past(&mut stream, b"run 7 begins\n").unwrap();
        assert_eq!(stream, b"new");
        assert!(skip_past(&mut &b"nothing"[..], b"run 7 begins\n").is_err());
    }
}
