//! Cuts a stream of bytes into lines of limited length.

/// Longest line in bytes, without its end. The counters of a machine with 64 vCPUs have 130 KiB.
pub const MAX_LINE: usize = 2 << 20;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Its text, without its end. Bytes that are not UTF-8 became U+FFFD.
    Text(String),
    /// It was longer than [`MAX_LINE`], and was dropped.
    TooLong,
}

/// Collects bytes until a line is complete. `\r`, `\n` or both end a line. Empty lines are skipped.
#[derive(Debug, Default)]
pub struct Lines {
    held: Vec<u8>,
    too_long: bool,
    /// The port is shared with people.
    shared: bool,
}

impl Lines {
    /// Makes an empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { held: Vec::new(), too_long: false, shared: false }
    }

    /// Makes an empty one. `shared`: people's text is on the port too, and is skipped (`control::record`).
    #[must_use]
    pub const fn of_port(shared: bool) -> Self {
        Self { held: Vec::new(), too_long: false, shared }
    }

    /// Takes bytes, and calls `found` with each line that they complete.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(Line)) {
        let mut parts = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).peekable();
        while let Some(part) = parts.next() {
            self.hold(part);
            // The last part has no end yet.
            if parts.peek().is_some()
                && let Some(line) = self.finish()
            {
                found(line);
            }
        }
    }

    /// Ends the line: the connection has ended. Returns what there was of it.
    pub fn finish(&mut self) -> Option<Line> {
        let bytes = core::mem::take(&mut self.held);
        if core::mem::take(&mut self.too_long) {
            return Some(Line::TooLong);
        }
        let text = if self.shared { control::record(&bytes)? } else { &bytes };
        (!text.is_empty()).then(|| Line::Text(String::from_utf8_lossy(text).into_owned()))
    }

    fn hold(&mut self, part: &[u8]) {
        if self.too_long || self.held.len().saturating_add(part.len()) > MAX_LINE {
            self.held = Vec::new();
            self.too_long = true;
        } else {
            self.held.extend_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(chunks: &[&[u8]]) -> Vec<Line> {
        let (mut lines, mut found) = (Lines::new(), Vec::new());
        chunks.iter().for_each(|chunk| lines.feed(chunk, |line| found.push(line)));
        found.extend(lines.finish());
        found
    }

    #[test]
    fn a_line_over_the_limit_is_dropped_and_the_next_is_read() {
        let long = vec![b'x'; MAX_LINE];
        assert_eq!(all(&[&long, b"\n"]).len(), 1);
        assert!(matches!(all(&[&long, b"\n"])[..], [Line::Text(_)]));
        assert_eq!(all(&[&long, b"x", b"yyy\nok\n"]), [Line::TooLong, Line::Text("ok".into())]);
    }

    #[test]
    fn on_a_shared_port_only_marked_lines_are_lines() {
        let said = b"\r\x1b[7msidecore>\x1b[0m st\r\x1b[K\x1e{\"a\":1}\r\n{\"fake\":1}\r\nlogin: \r\n\x1e{cut\x1e{}\r\n\x1e\r\n";
        for size in 1..said.len() {
            let (mut lines, mut found) = (Lines::of_port(true), Vec::new());
            said.chunks(size).for_each(|chunk| lines.feed(chunk, |line| found.push(line)));
            assert_eq!(found, [Line::Text("{\"a\":1}".into()), Line::Text("{}".into())]);
        }
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_the_bytes_are_cut(bytes in prop::collection::vec(
            prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300), size in 1_usize..20)
        {
            let whole: Vec<_> = bytes
                .split(|b| matches!(b, b'\r' | b'\n'))
                .filter(|line| !line.is_empty())
                .map(|line| Line::Text(String::from_utf8_lossy(line).into_owned()))
                .collect();
            prop_assert_eq!(all(&bytes.chunks(size).collect::<Vec<_>>()), whole);
        }
    }
}
