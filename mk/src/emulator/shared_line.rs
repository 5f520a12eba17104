//! A UART that people and programs share (`control::SharedOutput`): picks the lines of JSON out of what the machine says, and marks
//! those that it gets.

use std::io::{self, Read, Write};

use control::RECORD;

/// The lines of JSON in what comes. All that comes goes to `all` too.
pub struct Records<R, W> {
    from: R,
    all: W,
    /// A line of JSON that has begun.
    begun: Option<Vec<u8>>,
    /// Lines that nobody has read yet.
    found: Vec<u8>,
}

impl<R: Read, W: Write> Records<R, W> {
    /// Reads from `from`.
    pub fn new(from: R, all: W) -> Self {
        Self { from, all, begun: None, found: Vec::new() }
    }

    fn take(&mut self, byte: u8) {
        if byte == RECORD {
            self.begun = Some(Vec::new());
        } else if byte == b'\n' {
            if let Some(line) = self.begun.take() {
                self.found.extend_from_slice(line.trim_ascii());
                self.found.push(b'\n');
            }
        } else if let Some(line) = &mut self.begun {
            line.push(byte);
        }
    }
}

impl<R: Read, W: Write> Read for Records<R, W> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.found.is_empty() {
            let mut new = [0; 4096];
            let length = self.from.read(&mut new)?;
            if length == 0 {
                return Ok(0);
            }
            self.all.write_all(&new[..length])?;
            new[..length].iter().for_each(|&byte| self.take(byte));
        }
        let length = self.found.len().min(bytes.len());
        bytes[..length].copy_from_slice(&self.found[..length]);
        self.found.drain(..length);
        Ok(length)
    }
}

/// Takes commands. Each write begins with the mark.
pub struct Commands<W>(pub W);

impl<W: Write> Write for Commands<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(&[&[RECORD], bytes].concat())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_lines_are_read_and_everything_is_kept() {
        let said = b"sidecore> \r\x1b[K\x1e{\"a\":1}\r\n{\"fake\":1}\r\ntext \x1e{cut\x1e{}\n\x1e{";
        let (mut all, mut lines) = (Vec::new(), String::new());
        Records::new(&said[..], &mut all).read_to_string(&mut lines).unwrap();
        assert_eq!((lines.as_str(), &all[..]), ("{\"a\":1}\n{}\n", &said[..]));
    }

    #[test]
    fn a_command_is_marked() {
        let mut sent = Vec::new();
        Commands(&mut sent).write_all(b"{}\n").unwrap();
        assert_eq!(sent, b"\x1e{}\n");
    }
}
