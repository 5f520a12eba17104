//! Reads lines of limited length from a stream.

use std::io::{self, BufRead};

/// Longest line of the hypervisor in bytes. Its answers have at most 256 KiB.
pub const MAX_EVENT: usize = 1 << 20;

/// Reads the next line without its end. A line that is longer than `most` bytes is skipped, and `Some(None)` returned in its
/// place. `None`: the stream has ended; an unfinished line at its end is dropped.
///
/// # Errors
/// Those of the stream.
pub fn read_line(stream: &mut impl BufRead, most: usize) -> io::Result<Option<Option<String>>> {
    let (mut line, mut too_long) = (Vec::new(), false);
    loop {
        let buffer = match stream.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if buffer.is_empty() {
            return Ok(None);
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        too_long |= line.len() + part.len() > most;
        if too_long {
            line.clear();
        } else {
            line.extend_from_slice(part);
        }
        let taken = end.map_or(buffer.len(), |end| end + 1);
        stream.consume(taken);
        if end.is_some() {
            return Ok(Some((!too_long).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_and_long_ones_are_skipped_whole() {
        let text = format!("a\r\n\n{}\nb\nhalf", "x".repeat(9));
        for capacity in [1, 3, 100] {
            let mut stream = io::BufReader::with_capacity(capacity, text.as_bytes());
            let mut lines = Vec::new();
            while let Some(line) = read_line(&mut stream, 8).unwrap() {
                lines.push(line);
            }
            assert_eq!(lines, [Some("a".into()), Some(String::new()), None, Some("b".into())]);
        }
    }
}
