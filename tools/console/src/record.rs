//! Recordings: the machine's lines with their times.
//!
//! A line of the file is a time in seconds since the beginning, a space, and the line as it came. A file without times is read too,
//! such as the log of COM2 that `cargo mk` writes. Then the machine's own clock in its counters is the time.

use std::io::{self, Write};
use std::time::Duration;

use control::Event;

use crate::clean::{REPLACEMENT, is_shown};

/// Writes a recording, up to a size.
#[derive(Debug)]
pub struct Recorder<W> {
    out: W,
    left: u64,
}

impl<W: Write> Recorder<W> {
    /// Makes a recorder that writes at most so many bytes.
    pub const fn new(out: W, most: u64) -> Self {
        Self { out, left: most }
    }

    /// Writes a line that came at that time. Characters that are not shown become U+FFFD, so that the file can be shown on a terminal.
    /// The views would replace them too.
    ///
    /// # Errors
    /// It cannot be written, or the file has its largest size.
    pub fn line(&mut self, at: Duration, line: &str) -> io::Result<()> {
        let line: String = line.chars().map(|c| if is_shown(c) { c } else { REPLACEMENT }).collect();
        let text = format!("{:.3} {line}\n", at.as_secs_f64());
        let left = u64::try_from(text.len()).ok().and_then(|length| self.left.checked_sub(length));
        self.left = left.ok_or_else(|| io::Error::other("the recording has its largest size"))?;
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// Reads the lines of a recording one after the other.
#[derive(Debug, Default)]
pub struct Player {
    clock: Duration,
    first_tsc: Option<Duration>,
}

impl Player {
    /// Makes one at the beginning.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line of the file. Returns when the machine sent it, and what it sent. Times never go back.
    pub fn next<'a>(&mut self, line: &'a str) -> (Duration, &'a str) {
        let timed = line.split_once(' ').and_then(|(time, rest)| {
            let seconds: f64 = time.parse().ok()?;
            Some((Duration::try_from_secs_f64(seconds).ok()?, rest))
        });
        let (at, sent) = match timed {
            Some((at, sent)) => (at, sent),
            None => (self.machine_time(line).unwrap_or(self.clock), line),
        };
        self.clock = self.clock.max(at);
        (self.clock, sent)
    }

    /// The time of a line with counters, since the first such line.
    fn machine_time(&mut self, line: &str) -> Option<Duration> {
        // Reading every line would cost as much as showing it.
        if !line.contains("\"counters\"") {
            return None;
        }
        let Ok(Event::Counters(counters)) = Event::from_line(line) else { return None };
        let seconds = counters.tsc.checked_div(counters.tsc_hz)?;
        let time = Duration::from_secs(seconds);
        let first = *self.first_tsc.get_or_insert(time);
        Some(time.saturating_sub(first))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_recorded_is_played(lines in prop::collection::vec("[ -~]{1,40}", 0..10), step in 0_u64..5000) {
            let mut recorder = Recorder::new(Vec::new(), 10_000);
            let at = |n: usize| Duration::from_millis(step * n as u64);
            for (n, line) in lines.iter().enumerate() {
                recorder.line(at(n), line).unwrap();
            }
            let text = String::from_utf8(recorder.out).unwrap();
            let mut player = Player::new();
            let played: Vec<_> = text.lines().map(|line| player.next(line)).collect();
            let sent: Vec<_> = lines.iter().enumerate().map(|(n, line)| (at(n), &**line)).collect();
            prop_assert_eq!(played, sent);
        }

        #[test]
        fn any_file_can_be_played_and_time_never_goes_back(text in any::<String>()) {
            let mut player = Player::new();
            let times: Vec<_> = text.lines().map(|line| player.next(line).0).collect();
            prop_assert!(times.is_sorted());
        }
    }

    #[test]
    fn a_recording_is_bounded_and_has_nothing_that_a_terminal_obeys() {
        let mut recorder = Recorder::new(Vec::new(), 20);
        recorder.line(Duration::ZERO, "a\u{1b}[2Jb").unwrap();
        assert_eq!(recorder.out, "0.000 a\u{fffd}[2Jb\n".as_bytes());
        assert!(recorder.line(Duration::ZERO, "0123456789").is_err());
    }

    #[test]
    fn a_log_without_times_has_the_machines_own() {
        let line = |tsc: u64| {
            format!(
                r#"{{"event":"counters","tsc":{tsc},"tsc_hz":10,"hypervisor":{{"memory":0,"memory_without_guests":0}},"guests":[],"engines":[]}}"#
            )
        };
        let mut player = Player::new();
        let at = |player: &mut Player, line: &str| player.next(line).0.as_secs();
        assert_eq!(at(&mut player, &line(100)), 0);
        assert_eq!(at(&mut player, r#"{"event":"end","reason":"x"}"#), 0);
        assert_eq!(at(&mut player, &line(150)), 5);
        assert_eq!(at(&mut player, &line(120)), 5);
    }
}
