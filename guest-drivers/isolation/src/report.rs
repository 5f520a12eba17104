//! Counts attempts and refusals by kind.

use core::fmt;

use bare::console;

/// Most attempts of a kind that are reported because they were not refused.
const SHOWN: u32 = 8;
const MAX_KINDS: usize = 20;

/// The counts of one kind of attempt.
#[derive(Clone, Copy, Default)]
struct Tally {
    kind: &'static str,
    attempts: u32,
    refused: u32,
}

/// All counts.
pub struct Report {
    tallies: [Tally; MAX_KINDS],
    count: usize,
    shown: u32,
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Self { tallies: [Tally::default(); MAX_KINDS], count: 0, shown: 0 }
    }

    /// Begins a kind: the attempts that follow belong to it.
    pub fn begin(&mut self, kind: &'static str) {
        let tally = self.tallies.get_mut(self.count).unwrap_or_else(|| panic!("more than {MAX_KINDS} kinds"));
        tally.kind = kind;
        self.count += 1;
        self.shown = 0;
    }

    /// Counts an attempt. `what` describes the attempt and its result.
    pub fn attempt(&mut self, refused: bool, what: fmt::Arguments<'_>) {
        let Some(tally) = self.tallies.get_mut(self.count.wrapping_sub(1)) else { return };
        tally.attempts += 1;
        tally.refused += u32::from(refused);
        if !refused && self.shown < SHOWN {
            self.shown += 1;
            let kind = tally.kind;
            console::line(format_args!("SC {{\"test\":\"isolation\",\"kind\":\"{kind}\",\"allowed\":\"{what}\"}}"));
        }
    }

    /// Reports that something that the guest may do did not work. Then the attempts prove less than they should.
    pub fn broken(&self, what: fmt::Arguments<'_>) {
        let kind = self.tallies.get(self.count.wrapping_sub(1)).map_or("", |tally| tally.kind);
        console::line(format_args!("SC {{\"test\":\"isolation\",\"kind\":\"{kind}\",\"broken\":\"{what}\"}}"));
    }

    /// Ends a kind: writes the line with its counts.
    pub fn end(&self) {
        let Some(Tally { kind, attempts, refused }) = self.tallies.get(self.count.wrapping_sub(1)) else { return };
        console::line(format_args!(
            "SC {{\"test\":\"isolation\",\"kind\":\"{kind}\",\"attempts\":{attempts},\"refused\":{refused}}}"
        ));
    }

    /// Writes the last line.
    pub fn summary(&self) {
        let tallies = self.tallies.get(..self.count).unwrap_or_default();
        let attempts: u32 = tallies.iter().map(|tally| tally.attempts).sum();
        let refused: u32 = tallies.iter().map(|tally| tally.refused).sum();
        console::line(format_args!(
            "SC {{\"test\":\"isolation\",\"attempts\":{attempts},\"refused\":{refused},\"kinds\":{{{}}}}}",
            Kinds(tallies)
        ));
    }
}

struct Kinds<'a>(&'a [Tally]);

impl fmt::Display for Kinds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Tally { kind, attempts, refused }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}\"{kind}\":{{\"attempts\":{attempts},\"refused\":{refused}}}")?;
        }
        Ok(())
    }
}
