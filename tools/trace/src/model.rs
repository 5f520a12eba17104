//! A trace in memory: its events in the order of time, the names that its header gave, and what is missing.
//!
//! Everything here may come from a hostile machine. Numbers without a name are shown as numbers; names lose what a
//! terminal would interpret.

use trace::stream::{KernelAddresses, Scope};
use trace::{Captured, Record};

pub use sidecore_pcapng::names::{Device, Names, clean, clean_text};

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
    /// What the exits' records leave out on purpose: different ones, in the order of the file.
    pub scopes: Vec<Scope>,
}

impl Trace {
    /// Of these parts, in any order, and without a word of guests' kernels.
    #[must_use]
    pub fn new(clock: Clock, names: Names, mut events: Vec<Event>, mut losses: Vec<Loss>, damage: Damage) -> Self {
        events.sort_by_key(|event| (event.record.tsc, event.core, event.number));
        losses.sort_by_key(|loss| (loss.core, loss.number));
        let (captures, kernels, scopes) = (Vec::new(), Vec::new(), Vec::new());
        Self { clock, names, events, captures, losses, captures_lost: 0, damage, kernels, scopes }
    }

    /// With these captured frames, in any order, of which `lost` are missing.
    #[must_use]
    pub fn with_captures(self, mut captures: Vec<Capture>, lost: u64) -> Self {
        captures.sort_by_key(|capture| (capture.frame.tsc, capture.core, capture.number));
        Self { captures, captures_lost: lost, ..self }
    }

    /// For how many exits of a vCPU and a reason there is one record. None: that has changed in the trace.
    #[must_use]
    pub fn exits_one_of(&self) -> Option<u32> {
        let mut all = self.scopes.iter().map(|scope| scope.exits_one_of);
        let first = all.next().unwrap_or(1);
        all.all(|other| other == first).then_some(first)
    }

    /// Whether all records of exits have the guest's RIP.
    #[must_use]
    pub fn has_rips(&self) -> bool {
        self.scopes.iter().all(|scope| scope.rips)
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

#[cfg(test)]
mod tests {
    use super::*;

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
