//! The audit: who asked for what, and what became of it. Two rings of fixed size, one for the cables and one for the management
//! guest's channel, so that no guest can push out what came by a cable. Nothing else is written into them.
//!
//! A record is made for each command that needs more than the permission `view`, and for each refusal. What goes to a
//! guest's console and what is not carried out does not take a second record if it is repeated: its record counts, and keeps
//! the time of the last one.

use core::fmt::{self, Display, Write};

use heapless::String;
use serde::{Deserialize, Serialize};

use crate::fold::Folded;
use crate::no_memory::{NoMemory, collect};
use crate::permissions::{Caller, MAX_WHO, Permissions, Way};
use crate::shown::beginning;

use crate::Command;

/// Records of a ring.
const RECORDS: usize = 128;
/// Most bytes of a command in a record. The longest one is `port` with two names.
const COMMAND: usize = 80;
/// Most bytes of the reason in a record.
const REASON: usize = 80;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was carried out, or has begun.
    Done,
    /// Its caller lacks the permission.
    Refused,
    /// It could not be carried out.
    Failed,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number in its ring, from 0. A gap was pushed out by later records.
    pub number: u64,
    /// When, in milliseconds since 1970 (UTC).
    pub time: u64,
    /// When it was repeated last.
    pub last: u64,
    /// How often, 1 if it was not repeated.
    pub times: u64,
    /// The way in.
    pub way: Way,
    /// The caller's name. Empty for a cable.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub who: String<MAX_WHO>,
    /// The command as it would be typed, without what goes to a guest's console.
    pub command: String<COMMAND>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it was not carried out.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: String<REASON>,
}

/// What a record says of a command. It is taken before the command is carried out, because that takes the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    command: String<COMMAND>,
    /// Whether it is noted when it is carried out.
    changes: bool,
    /// Whether it has something for a guest's console.
    has_input: bool,
}

impl From<&Command> for Note {
    fn from(command: &Command) -> Self {
        let changes = command.permission() != Permissions::VIEW;
        Self { command: beginning(command.summary()), changes, has_input: command.has_input() }
    }
}

/// A ring of records.
#[derive(Debug)]
struct Ring {
    records: heapless::Deque<Record, RECORDS>,
    /// The number of the next record.
    next: u64,
}

/// All records.
#[derive(Debug)]
pub struct Audit {
    cables: Ring,
    channel: Ring,
}

impl Default for Audit {
    fn default() -> Self {
        Self::new()
    }
}

impl Audit {
    /// Makes an audit without records.
    #[must_use]
    pub const fn new() -> Self {
        Self { cables: Ring::new(), channel: Ring::new() }
    }

    /// Notes what became of a command. `now`: milliseconds since 1970. Does nothing for a command that changes nothing and
    /// is not refused.
    pub fn note(&mut self, now: u64, caller: &Caller, note: &Note, outcome: Outcome, reason: &str) {
        if outcome != Outcome::Refused && !note.changes {
            return;
        }
        let ring = match caller.way {
            Way::Com1 | Way::Com2 => &mut self.cables,
            Way::Channel => &mut self.channel,
        };
        let record = Record {
            number: ring.next,
            time: now,
            last: now,
            times: 1,
            way: caller.way,
            who: caller.who.clone(),
            command: note.command.clone(),
            outcome,
            reason: beginning(reason),
        };
        ring.add(record, outcome != Outcome::Done || note.has_input);
    }

    /// The records: those of the cables and then those of the channel, the oldest first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.cables.records.iter().chain(&self.channel.records)
    }

    /// Copies the records.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn copy(&self) -> Result<alloc::vec::Vec<Record>, NoMemory> {
        collect(self.records().map(|record| Ok(record.clone())))
    }

    /// Writes the records for a person, in lines of up to 80 columns.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn show(&self, out: &mut dyn Write) -> fmt::Result {
        show_records(self.records(), out)
    }
}

/// Writes records for a person, in lines of up to 80 columns.
///
/// # Errors
/// Those of `out`.
pub fn show_records<'a>(records: impl IntoIterator<Item = &'a Record>, out: &mut dyn Write) -> fmt::Result {
    let mut records = records.into_iter().peekable();
    if records.peek().is_none() {
        return out.write_str("nothing was changed yet\n");
    }
    for record in records {
        let mut line = Folded::new(out);
        write!(line, "{} {}", Time(record.time), record.way.name())?;
        if !record.who.is_empty() {
            write!(line, " ({})", record.who)?;
        }
        write!(line, ": {}: ", record.command)?;
        match record.outcome {
            Outcome::Done => line.write_str("done")?,
            Outcome::Refused => write!(line, "refused: {}", record.reason)?,
            Outcome::Failed => write!(line, "failed: {}", record.reason)?,
        }
        if record.times > 1 {
            write!(line, ", {} times until {}", record.times, Time(record.last))?;
        }
        line.end()?;
    }
    Ok(())
}

impl Ring {
    const fn new() -> Self {
        Self { records: heapless::Deque::new(), next: 0 }
    }

    /// Adds a record. `may_repeat`: if there is the same one, that one counts instead.
    fn add(&mut self, new: Record, may_repeat: bool) {
        let same = self.records.iter_mut().rev().find(|old| {
            may_repeat
                && old.command == new.command
                && (old.way, old.outcome) == (new.way, new.outcome)
                && (&old.who, &old.reason) == (&new.who, &new.reason)
        });
        if let Some(old) = same {
            old.times = old.times.saturating_add(1);
            old.last = new.time;
            return;
        }
        self.next = self.next.saturating_add(1);
        if self.records.is_full() {
            self.records.pop_front();
        }
        // There is room.
        let _ = self.records.push_back(new);
    }
}

/// A time of day, in milliseconds since 1970: `2026-11-26 05:45:47`, UTC.
pub(crate) struct Time(pub u64);

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (year, month, day) = date(seconds / 86_400);
        let of_day = seconds % 86_400;
        write!(f, "{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
    }
}

/// The date of a day after 1970-01-01 in the Gregorian calendar: year, month, day. Years up to 9999; later days stay there.
fn date(day: u64) -> (u64, u64, u64) {
    /// Days of 400 years, of 100 years without the leap day at their end, of 4 years.
    const ERA: u64 = 146_097;
    let day = day.min(2_932_896).saturating_add(719_468);
    let (era, of_era) = (day / ERA, day % ERA);
    // The corrections for days that 4, 100 and 400 years have more or less.
    let corrected =
        of_era.saturating_sub(of_era / 1460).saturating_add(of_era / 36_524).saturating_sub(of_era / 146_096);
    let year = corrected / 365;
    // Years begin in March here, so that the leap day is the last day of a year.
    let of_year = of_era.saturating_sub(year.saturating_mul(365).saturating_add(year / 4).saturating_sub(year / 100));
    let month = of_year.saturating_mul(5).saturating_add(2) / 153;
    let day = of_year.saturating_sub(month.saturating_mul(153).saturating_add(2) / 5).saturating_add(1);
    let month = if month < 10 { month.saturating_add(3) } else { month.saturating_sub(9) };
    let year = era.saturating_mul(400).saturating_add(year).saturating_add(u64::from(month <= 2));
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn com2() -> Caller {
        Caller::cable(Way::Com2, Permissions::all())
    }

    fn note(command: &Command) -> Note {
        command.into()
    }

    fn channel() -> Caller {
        Caller::named(Way::Channel, "anna", Permissions::VIEW)
    }

    fn shown(audit: &Audit) -> std::string::String {
        let mut out = std::string::String::new();
        audit.show(&mut out).unwrap();
        out
    }

    #[test]
    fn a_command_that_changes_something_is_noted_and_one_that_shows_is_not() {
        let mut audit = Audit::new();
        assert_eq!(shown(&audit), "nothing was changed yet\n");
        let time = 1_764_135_947_000;
        audit.note(time, &com2(), &note(&Command::List), Outcome::Done, "");
        audit.note(time, &com2(), &note(&Command::Stop("a".into())), Outcome::Done, "");
        audit.note(time + 1000, &com2(), &note(&Command::Start("b".into())), Outcome::Failed, "guest `b` is running");
        audit.note(time + 2000, &channel(), &note(&Command::List), Outcome::Refused, "no");
        let expected = "\
2025-11-26 05:45:47 COM2: stop a: done
2025-11-26 05:45:48 COM2: start b: failed: guest `b` is running
2025-11-26 05:45:49 channel (anna): list: refused: no
";
        assert_eq!(shown(&audit), expected);
    }

    #[test]
    fn what_goes_to_a_console_is_counted_and_not_written_down() {
        let mut audit = Audit::new();
        for time in 0..1000 {
            let input = |guest: &str| Command::Input { guest: guest.into(), text: format!("secret {time}") };
            audit.note(time, &com2(), &note(&input("a")), Outcome::Done, "");
            audit.note(time, &com2(), &note(&input("b")), Outcome::Done, "");
        }
        let records: Vec<_> = audit.records().map(|r| (r.command.as_str(), r.times, r.time, r.last)).collect();
        assert_eq!(records, [("input a", 1000, 0, 999), ("input b", 1000, 0, 999)]);
        assert!(!shown(&audit).contains("secret"));
    }

    #[test]
    fn the_order_of_starts_and_stops_is_kept() {
        let mut audit = Audit::new();
        for time in 0..3 {
            audit.note(time, &com2(), &note(&Command::Start("a".into())), Outcome::Done, "");
            audit.note(time, &com2(), &note(&Command::Stop("a".into())), Outcome::Done, "");
        }
        let commands: Vec<_> = audit.records().map(|r| r.command.as_str()).collect();
        assert_eq!(commands, ["start a", "stop a", "start a", "stop a", "start a", "stop a"]);
    }

    #[test]
    fn the_channel_cannot_push_out_what_came_by_a_cable() {
        let mut audit = Audit::new();
        audit.note(1, &com2(), &note(&Command::Kill("a".into())), Outcome::Done, "");
        for time in 0..5_000 {
            audit.note(time, &channel(), &note(&Command::Kill(format!("x{time}"))), Outcome::Refused, "no");
        }
        assert_eq!(audit.records().filter(|record| record.way == Way::Com2).count(), 1);
        let numbers: Vec<_> = audit.records().skip(1).map(|record| record.number).collect();
        assert_eq!(numbers, (5_000 - RECORDS as u64..5_000).collect::<Vec<_>>(), "the latest are kept");
    }

    #[test]
    fn the_longest_record_is_cut_and_its_lines_fit_the_screen() {
        let mut audit = Audit::new();
        let caller = Caller::named(Way::Channel, &"w".repeat(99), Permissions::VIEW);
        let command = Command::Port { guest: "g".repeat(99), port: "\x1b[2J".into(), open: true };
        audit.note(u64::MAX, &caller, &note(&command), Outcome::Failed, &"no such port ".repeat(20));
        let record = audit.records().next().unwrap();
        assert_eq!((record.who.len(), record.command.len(), record.reason.len()), (MAX_WHO, COMMAND, REASON));
        let shown = shown(&audit);
        assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
        assert!(!shown.contains('\x1b'));
        assert!(shown.starts_with("9999-12-31"), "{shown}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (day, expected) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_453, (2025, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (2_932_896, (9999, 12, 31)),
        ] {
            assert_eq!(date(day), expected, "{day}");
        }
    }
}
