//! Counts attempts and refusals by kind.

use core::fmt;

use bare::console;

/// Attempts that were not refused are shown up to this many of a kind.
const SHOWN: u32 = 8;
const MAX_KINDS: usize = 20;

/// What is known of one kind of attempt.
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
    /// Nothing yet.
    pub fn new() -> Self {
        Self { tallies: [Tally::default(); MAX_KINDS], count: 0, shown: 0 }
    }

    /// The attempts that follow are of this kind.
    pub fn begin(&mut self, kind: &'static str) {
        let tally = self.tallies.get_mut(self.count).unwrap_or_else(|| panic!("more than {MAX_KINDS} kinds"));
        tally.kind = kind;
        self.count += 1;
        self.shown = 0;
    }

    /// An attempt was made; `what` describes it and what came of it.
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

    /// Something that is the guest's right did not work, so that the attempts prove less than they should.
    pub fn broken(&self, what: fmt::Arguments<'_>) {
        let kind = self.tallies.get(self.count.wrapping_sub(1)).map_or("", |tally| tally.kind);
        console::line(format_args!("SC {{\"test\":\"isolation\",\"kind\":\"{kind}\",\"broken\":\"{what}\"}}"));
    }

    /// The kind's attempts are over.
    pub fn end(&self) {
        let Some(Tally { kind, attempts, refused }) = self.tallies.get(self.count.wrapping_sub(1)) else { return };
        console::line(format_args!(
            "SC {{\"test\":\"isolation\",\"kind\":\"{kind}\",\"attempts\":{attempts},\"refused\":{refused}}}"
        ));
    }

    /// The last line.
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
