//! The audit: who asked for what, and what became of it. Three rings of fixed size: one for the cables, one for the management
//! guest's channel, and one for what the agent in that guest reports of its own: logins, log-outs, what it has refused, and its host key. So no
//! guest can push out what came by a cable, and no report can push out a command. Reports come at a limited rate. Nothing else is
//! written into the rings.
//!
//! Names and addresses of callers are what the agent says. Root mode cannot check them.
//!
//! A record is made for each command that needs more than the permission `view`, and for each refusal. What goes to a
//! guest's console and what is not carried out does not take a second record if it is repeated: its record counts, and keeps
//! the time of the last one.

use core::fmt::{self, Display, Write};

use heapless::String;
use serde::{Deserialize, Serialize};

use crate::fold::Folded;
use crate::no_memory::{NoMemory, collect};
use crate::notice::Notice;
use crate::permissions::{Caller, Permissions, Way};
use crate::sender::{MAX_ADDRESS, MAX_WHO};
use crate::shown::{Joined, beginning};
use crate::{Command, Text};

/// Records of the rings of the cables and of the channel.
const RECORDS: usize = 128;
/// Records of the ring of reports.
const REPORTS: usize = 64;
/// Most reports at once: as many as the broker has clients.
const REPORTS_AT_ONCE: u64 = 32;
/// Milliseconds until there may be one report more.
const REPORT_PERIOD: u64 = 1000;
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
    /// Its number in its ring, from 0. What is missing was pushed out by later records, or was a report that came too fast.
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
    /// The address of the caller's client. Empty for a cable.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub address: String<MAX_ADDRESS>,
    /// The whole record is what the agent reports.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub reported: bool,
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
struct Ring<const MOST: usize> {
    records: heapless::Deque<Record, MOST>,
    /// The number of the next record.
    next: u64,
}

/// All records.
#[derive(Debug)]
pub struct Audit {
    cables: Ring<RECORDS>,
    channel: Ring<RECORDS>,
    reports: Ring<REPORTS>,
    /// The time at which there may be [`REPORTS_AT_ONCE`] reports again.
    unlimited_at: u64,
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
        Self { cables: Ring::new(), channel: Ring::new(), reports: Ring::new(), unlimited_at: 0 }
    }

    /// Notes what became of a command. `now`: milliseconds since 1970. Does nothing for a command that changes nothing and
    /// is not refused. Returns the record, if it is a new one.
    pub fn note(&mut self, now: u64, caller: &Caller, note: &Note, outcome: Outcome, reason: &str) -> Option<&Record> {
        if outcome != Outcome::Refused && !note.changes {
            return None;
        }
        let record = Record::new(now, caller, note.command.clone(), outcome, beginning(reason));
        let may_repeat = outcome != Outcome::Done || note.has_input;
        match caller.way {
            Way::Com1 | Way::Com2 => self.cables.add(record, may_repeat),
            Way::Channel => self.channel.add(record, may_repeat),
        }
    }

    /// Notes what the agent reports. `now`: milliseconds since 1970. `line` and `why`: the command that it has refused, and its
    /// reason; or `line`: the fingerprint of its host key. A refusal or host key that is repeated takes no second record. Returns the
    /// record, if it is a new one.
    ///
    /// # Errors
    /// The caller is a cable, or reports come too fast. A report that comes too fast takes a number, and nothing else.
    pub fn report(
        &mut self,
        now: u64,
        caller: &Caller,
        what: Notice,
        line: &str,
        why: &str,
    ) -> Result<Option<&Record>, Text> {
        if caller.way != Way::Channel {
            return Err("`notice` is a command of the management guest's agent".into());
        }
        let begins = self.unlimited_at.max(now);
        if begins.saturating_sub(now) > REPORT_PERIOD.saturating_mul(REPORTS_AT_ONCE.saturating_sub(1)) {
            self.reports.next = self.reports.next.saturating_add(1);
            return Err("reports come too fast: this one is not noted".into());
        }
        self.unlimited_at = begins.saturating_add(REPORT_PERIOD);
        let (command, outcome) = match what {
            Notice::Login | Notice::Logout => (beginning(what.name()), Outcome::Done),
            Notice::Refused => (beginning(Plain(line)), Outcome::Refused),
            Notice::HostKey => (beginning(format_args!("{} {}", what.name(), Plain(line))), Outcome::Done),
        };
        let record = Record { reported: true, ..Record::new(now, caller, command, outcome, beginning(Plain(why))) };
        Ok(self.reports.add(record, matches!(what, Notice::Refused | Notice::HostKey)))
    }

    /// The records: those of the cables, then those of the channel, then what the agent reports, each the oldest first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.cables.records.iter().chain(&self.channel.records).chain(&self.reports.records)
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
        if record.reported {
            line.write_str(", the agent reports")?;
        }
        let said = [&*record.who, &*record.address, if record.reported { "" } else { "says the agent" }];
        if !(record.who.is_empty() && record.address.is_empty()) {
            write!(line, " ({})", Joined(said.iter().filter(|said| !said.is_empty())))?;
        }
        write!(line, ": {}", record.command)?;
        match record.outcome {
            Outcome::Done if record.reported => {}
            Outcome::Done => line.write_str(": done")?,
            Outcome::Refused => write!(line, ": refused: {}", record.reason)?,
            Outcome::Failed => write!(line, ": failed: {}", record.reason)?,
        }
        if record.times > 1 {
            write!(line, ", {} times until {}", record.times, Time(record.last))?;
        }
        line.end()?;
    }
    Ok(())
}

impl Record {
    /// A record that was not repeated, without its number.
    fn new(now: u64, caller: &Caller, command: String<COMMAND>, outcome: Outcome, reason: String<REASON>) -> Self {
        Self {
            number: 0,
            time: now,
            last: now,
            times: 1,
            way: caller.way,
            who: caller.sender.who.clone(),
            address: caller.sender.address.clone(),
            reported: false,
            command,
            outcome,
            reason,
        }
    }
}

/// Shows a text of the agent: in the place of each other character than those of printable ASCII there is a question mark.
struct Plain<'a>(&'a str);

impl Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| f.write_char(if matches!(c, ' '..='~') { c } else { '?' }))
    }
}

impl<const MOST: usize> Ring<MOST> {
    const fn new() -> Self {
        Self { records: heapless::Deque::new(), next: 0 }
    }

    /// Adds a record, gives it its number, and returns it. `may_repeat`: if there is the same one, that one counts instead, and nothing
    /// is returned.
    fn add(&mut self, mut new: Record, may_repeat: bool) -> Option<&Record> {
        let same = self.records.iter_mut().rev().find(|old| {
            may_repeat
                && old.command == new.command
                && (old.way, old.outcome) == (new.way, new.outcome)
                && (&old.who, &old.address, &old.reason) == (&new.who, &new.address, &new.reason)
        });
        if let Some(old) = same {
            old.times = old.times.saturating_add(1);
            old.last = new.time;
            return None;
        }
        new.number = self.next;
        self.next = self.next.saturating_add(1);
        if self.records.is_full() {
            self.records.pop_front();
        }
        // There is room.
        let _ = self.records.push_back(new);
        self.records.back()
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
2025-11-26 05:45:49 channel (anna, says the agent): list: refused: no
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

    fn key(who: &str, address: &str) -> Caller {
        channel().with_sender(crate::Sender::new(who, address))
    }

    #[test]
    fn names_and_addresses_are_shown_as_the_agent_s_words() {
        let mut audit = Audit::new();
        let anna = key("anna", "10.0.0.5");
        let stop = note(&Command::Stop("a".into()));
        assert_eq!(audit.note(0, &anna, &stop, Outcome::Done, "").map(|new| (new.number, new.times)), Some((0, 1)));
        audit.report(1000, &anna, Notice::Login, "", "").unwrap();
        for time in 2..5 {
            audit.report(1000 * time, &anna, Notice::Refused, "attach b", "\u{202e}not of\n this key").unwrap();
        }
        audit.report(5000, &key("", "10.0.0.6"), Notice::Logout, "", "").unwrap();
        let host_key =
            |audit: &mut Audit, key| audit.report(6000, &channel(), Notice::HostKey, key, "").unwrap().is_some();
        let are_new =
            ["SHA256:ab+/ (ED25519)", "SHA256:ab+/ (ED25519)", "\n\x1b[2Jlogin: "].map(|key| host_key(&mut audit, key));
        assert_eq!(are_new, [true, false, true]);
        let expected = "\
1970-01-01 00:00:00 channel (anna, 10.0.0.5, says the agent): stop a: done
1970-01-01 00:00:01 channel, the agent reports (anna, 10.0.0.5): login
1970-01-01 00:00:02 channel, the agent reports (anna, 10.0.0.5): attach b:
    refused: ?not of? this key, 3 times until 1970-01-01 00:00:04
1970-01-01 00:00:05 channel, the agent reports (10.0.0.6): logout
1970-01-01 00:00:06 channel, the agent reports (anna): host-key SHA256:ab+/
    (ED25519), 2 times until 1970-01-01 00:00:06
1970-01-01 00:00:06 channel, the agent reports (anna): host-key ??[2Jlogin:
";
        assert_eq!(shown(&audit), expected);
    }

    #[test]
    fn a_report_gives_no_permission_and_comes_by_no_cable() {
        let anna = key("root", "COM1");
        assert_eq!((anna.way, anna.allowed), (Way::Channel, Permissions::VIEW));
        let mut audit = Audit::new();
        let why = audit.report(0, &com2(), Notice::Login, "", "").unwrap_err();
        assert!(why.contains("the management guest's agent"), "{why}");
        assert_eq!(audit.records().count(), 0);
    }

    #[test]
    fn a_flood_of_reports_pushes_out_nothing_else_and_is_limited() {
        let mut audit = Audit::new();
        audit.note(1, &com2(), &note(&Command::Kill("a".into())), Outcome::Done, "");
        audit.note(1, &channel(), &note(&Command::Kill("b".into())), Outcome::Done, "");
        let flood = |audit: &mut Audit, now: u64| {
            (0..10_000).filter(|_| audit.report(now, &channel(), Notice::Login, "", "").is_ok()).count() as u64
        };
        assert_eq!(flood(&mut audit, 1000), REPORTS_AT_ONCE);
        assert_eq!(flood(&mut audit, 1000 + REPORT_PERIOD - 1), 0);
        assert_eq!(flood(&mut audit, 1000 + 3 * REPORT_PERIOD), 3);
        assert_eq!(flood(&mut audit, 1000 + 1000 * REPORT_PERIOD), REPORTS_AT_ONCE);
        // A clock that goes back does not open it.
        assert_eq!(flood(&mut audit, 0), 0);
        let commands: Vec<_> = audit.records().filter(|r| !r.reported).map(|r| r.command.as_str()).collect();
        assert_eq!(commands, ["kill a", "kill b"]);
        assert_eq!(audit.records().filter(|r| r.reported).count(), REPORTS);
        assert_eq!(audit.records().last().unwrap().number, 40_000 - 1 - (10_000 - REPORTS_AT_ONCE));
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
