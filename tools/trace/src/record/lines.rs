//! Cuts what COM2 says into lines, whatever the machine sends.

/// A longer line is dropped. sidecore's longest is far below that.
const LONGEST: usize = 1 << 20;

/// The bytes of a line that has not ended.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
    /// The line was too long; the rest of it is dropped.
    dropping: bool,
    /// Lines that were dropped.
    dropped: u64,
}

impl Lines {
    /// Takes bytes, and calls `line` for each line that ends in them, without its end.
    pub fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let ended = part.ends_with(b"\n");
            if !self.dropping {
                if self.begun.len().saturating_add(part.len()) > LONGEST {
                    self.dropping = true;
                    self.dropped = self.dropped.saturating_add(1);
                    self.begun.clear();
                } else {
                    self.begun.extend_from_slice(part);
                }
            }
            if ended {
                if !self.dropping {
                    line(self.begun.trim_ascii());
                }
                self.dropping = false;
                self.begun.clear();
            }
        }
    }

    /// Lines that were too long.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(lines: &mut Lines, bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        lines.take(bytes, |line| found.push(String::from_utf8_lossy(line).into_owned()));
        found
    }

    #[test]
    fn a_line_may_come_in_pieces() {
        let mut lines = Lines::default();
        assert!(cut(&mut lines, b"{\"a\"").is_empty());
        assert_eq!(cut(&mut lines, b":1}\r\n{\"b\":2}\n{"), ["{\"a\":1}", "{\"b\":2}"]);
        assert_eq!(cut(&mut lines, b"}\n"), ["{}"]);
    }

    #[test]
    fn a_line_without_end_takes_no_more_than_the_limit() {
        let mut lines = Lines::default();
        for _ in 0..40 {
            assert!(cut(&mut lines, &[b'x'; 100_000]).is_empty());
            assert!(lines.begun.len() <= LONGEST);
        }
        assert_eq!(cut(&mut lines, b"rest\nnext\n"), ["next"]);
        assert_eq!(lines.dropped(), 1);
    }

    proptest! {
        #[test]
        fn where_bytes_are_cut_does_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0_usize..400) {
            let (first, second) = bytes.split_at(at.min(bytes.len()));
            let mut whole = Vec::new();
            Lines::default().take(&bytes, |line| whole.push(line.to_vec()));
            let (mut parts, mut lines) = (Vec::new(), Lines::default());
            lines.take(first, |line| parts.push(line.to_vec()));
            lines.take(second, |line| parts.push(line.to_vec()));
            prop_assert_eq!(whole, parts);
        }
    }
}
