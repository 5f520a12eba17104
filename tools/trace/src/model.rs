//! A trace in memory: its events in the order of time, the names that its header gave, and what is missing.
//!
//! Everything here may come from a hostile machine. Numbers without a name are shown as numbers; names lose what a
//! terminal would interpret.

use std::collections::BTreeMap;

use trace::record::NO_GUEST;
use trace::stream::KernelAddresses;
use trace::{Captured, Kind, Record};

use crate::clock::Clock;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The core that wrote it.
    pub core: u32,
    /// Its number among the records of its core, from 0.
    pub number: u64,
    /// What the core wrote.
    pub record: Record,
}

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The core that wrote it.
    pub core: u32,
    /// Its number among the captured frames of its core, from 0.
    pub number: u64,
    /// What the core wrote.
    pub frame: Captured,
}

/// Records of a core that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The core.
    pub core: u32,
    /// Number of the first record that is missing.
    pub number: u64,
    /// How many are missing.
    pub records: u64,
    /// TSC of the next record of the core that is there. None: none follows.
    pub before: Option<u64>,
}

/// What reading a trace had to skip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bytes that belong to no sound block.
    pub bytes: u64,
    /// Blocks of a kind that this version does not know.
    pub unknown_blocks: u64,
}

/// Names of numbers in records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Roles of cores, by number.
    pub cores: BTreeMap<u32, String>,
    /// Guests by number.
    pub guests: BTreeMap<u8, String>,
    /// Numbers of engines, by core.
    pub engines: BTreeMap<u32, u32>,
    /// Devices by engine and slot.
    pub devices: BTreeMap<(u32, u32), Device>,
    /// Reasons of exits, by code.
    pub reasons: BTreeMap<u8, String>,
    /// Kinds by number, where the writer's are more than this program's.
    pub kinds: BTreeMap<u8, String>,
    /// States of guests, by code of `life`.
    pub states: BTreeMap<u8, String>,
    /// Causes of drops, by code of `frame-dropped`.
    pub causes: BTreeMap<u8, String>,
    /// Why guests stop, by `a` of `life`.
    pub stops: BTreeMap<u8, String>,
}

/// A device in a slot of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The number of its guest. None: it belongs to none.
    pub guest: Option<u8>,
    /// Its name.
    pub name: String,
}

/// A trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Ticks and time.
    pub clock: Clock,
    /// Names.
    pub names: Names,
    /// Events, by TSC, then core, then number.
    pub events: Vec<Event>,
    /// Captured frames, by TSC, then core, then number.
    pub captures: Vec<Capture>,
    /// What is missing, by core and number.
    pub losses: Vec<Loss>,
    /// Captured frames that are missing.
    pub captures_lost: u64,
    /// What was skipped.
    pub damage: Damage,
    /// Where guests' kernels are, in the order of the file.
    pub kernels: Vec<KernelAddresses>,
}

impl Trace {
    /// Of these parts, in any order, and without a word of guests' kernels.
    #[must_use]
    pub fn new(clock: Clock, names: Names, mut events: Vec<Event>, mut losses: Vec<Loss>, damage: Damage) -> Self {
        events.sort_by_key(|event| (event.record.tsc, event.core, event.number));
        losses.sort_by_key(|loss| (loss.core, loss.number));
        Self { clock, names, events, captures: Vec::new(), losses, captures_lost: 0, damage, kernels: Vec::new() }
    }

    /// With these captured frames, in any order, of which `lost` are missing.
    #[must_use]
    pub fn with_captures(self, mut captures: Vec<Capture>, lost: u64) -> Self {
        captures.sort_by_key(|capture| (capture.frame.tsc, capture.core, capture.number));
        Self { captures, captures_lost: lost, ..self }
    }

    /// Records that are missing, of all cores.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.losses.iter().fold(0_u64, |sum, loss| sum.saturating_add(loss.records))
    }

    /// Ticks from the first event to the last.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        let (Some(first), Some(last)) = (self.events.first(), self.events.last()) else { return 0 };
        last.record.tsc.saturating_sub(first.record.tsc)
    }

    /// Leaves out what does not concern the guests of these names. Empty: leaves out nothing.
    ///
    /// # Errors
    /// The first name that the trace does not have, with those it has.
    pub fn keep_guests(&mut self, names: &[String]) -> Result<(), anyhow::Error> {
        let mut wanted = Vec::new();
        for name in names {
            let number = self.names.guests.iter().find(|(_, known)| *known == name).map(|(&number, _)| number);
            let Some(number) = number else {
                let known: Vec<&str> = self.names.guests.values().map(String::as_str).collect();
                anyhow::bail!("no guest `{}` in this trace; it has: {}", clean(name), known.join(", "));
            };
            wanted.push(number);
        }
        if !wanted.is_empty() {
            self.events.retain(|event| wanted.contains(&event.record.guest));
            self.captures.retain(|capture| wanted.contains(&capture.frame.guest));
        }
        Ok(())
    }
}

impl Names {
    /// A guest's name, or its number.
    #[must_use]
    pub fn guest(&self, number: u8) -> String {
        match self.guests.get(&number) {
            Some(name) => name.clone(),
            None if number == NO_GUEST => "no guest".to_owned(),
            None => format!("guest-{number}"),
        }
    }

    /// An exit reason's name, or its number.
    #[must_use]
    pub fn reason(&self, code: u8) -> String {
        self.reasons.get(&code).cloned().unwrap_or_else(|| format!("reason-{code}"))
    }

    /// A guest state's name, or its number.
    #[must_use]
    pub fn state(&self, code: u8) -> String {
        self.states.get(&code).cloned().unwrap_or_else(|| format!("state-{code}"))
    }

    /// The name of a drop's cause, or its number.
    #[must_use]
    pub fn cause(&self, code: u8) -> String {
        self.causes.get(&code).cloned().unwrap_or_else(|| format!("cause-{code}"))
    }

    /// Why a guest has stopped, or the number of that. None: it has not stopped.
    #[must_use]
    pub fn stop(&self, number: u64) -> Option<String> {
        let name = u8::try_from(number).ok().and_then(|number| self.stops.get(&number));
        (number != 0).then(|| name.cloned().unwrap_or_else(|| format!("stop-{number}")))
    }

    /// A kind's name, or its number.
    #[must_use]
    pub fn kind(&self, number: u8) -> String {
        match Kind::from_number(number) {
            Some(kind) => kind.name().to_owned(),
            None => self.kinds.get(&number).cloned().unwrap_or_else(|| format!("kind-{number}")),
        }
    }

    /// A core with its role.
    #[must_use]
    pub fn core(&self, number: u32) -> String {
        match self.cores.get(&number) {
            Some(role) => format!("core {number} ({role})"),
            None => format!("core {number}"),
        }
    }

    /// The device in a slot of the engine on a core, with its guest.
    #[must_use]
    pub fn device(&self, core: u32, slot: u32) -> String {
        let device = self.engines.get(&core).and_then(|&engine| self.devices.get(&(engine, slot)));
        let Some(device) = device else { return format!("slot {slot}") };
        let owner = device.guest.map(|guest| self.guest(guest));
        match (owner, device.name.as_str()) {
            (Some(guest), "") => format!("{guest} slot {slot}"),
            (Some(guest), name) => format!("{guest} {name}"),
            (None, "") => format!("slot {slot}"),
            (None, name) => name.to_owned(),
        }
    }
}

/// The engine's slot in `a` of a visit, completion, frame or disk request.
#[must_use]
pub fn slot(record: &Record) -> u32 {
    (record.a >> 32) as u32
}

/// The lower half of `a`: requests of a visit, length of a frame, number of a disk request.
#[must_use]
pub fn amount(record: &Record) -> u32 {
    record.a as u32
}

/// A name of a trace for people's terminals: at most 64 characters, control characters replaced by `?`.
#[must_use]
pub fn clean(name: &str) -> String {
    clean_text(name, 64)
}

/// The same for a text of at most `most` characters.
#[must_use]
pub fn clean_text(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() || is_format(c) { '?' } else { c }).collect()
}

/// Characters that change the direction of text, or are not seen.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_are_shown_as_numbers() {
        let names = Names::default();
        assert_eq!(names.guest(3), "guest-3");
        assert_eq!(names.guest(NO_GUEST), "no guest");
        assert_eq!(names.reason(200), "reason-200");
        assert_eq!(names.kind(1), "exit");
        assert_eq!(names.kind(200), "kind-200");
        assert_eq!(names.device(1, 4), "slot 4");
    }

    #[test]
    fn what_a_terminal_would_interpret_is_replaced() {
        assert_eq!(clean("a\x1b[2Jb\n\u{202e}c"), "a?[2Jb??c");
        assert_eq!(clean(&"x".repeat(1000)).len(), 64);
    }

    #[test]
    fn events_are_in_the_order_of_time_whatever_core_wrote_them() {
        let event = |core, number, tsc| Event { core, number, record: Record { tsc, ..Record::default() } };
        let events = vec![event(1, 0, 30), event(0, 1, 20), event(0, 0, 10)];
        let trace = Trace::new(Clock::new(1, None), Names::default(), events, Vec::new(), Damage::default());
        assert_eq!(trace.events.iter().map(|e| e.record.tsc).collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(trace.ticks(), 20);
    }

    #[test]
    fn a_guest_that_is_not_there_is_named_with_those_that_are() {
        let mut names = Names::default();
        names.guests.insert(0, "a".to_owned());
        let mut trace = Trace::new(Clock::new(1, None), names, Vec::new(), Vec::new(), Damage::default());
        let error = trace.keep_guests(&["b".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("`b`") && error.ends_with("it has: a"), "{error}");
        assert!(trace.keep_guests(&["a".to_owned()]).is_ok());
    }
}
