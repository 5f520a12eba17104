//! Names of numbers in a trace. They come from the trace's header, and a hostile machine may have written that: names lose what a
//! terminal would interpret.

use std::collections::BTreeMap;

use trace::Kind;
use trace::record::NO_GUEST;
use trace::stream::{self, Header, Table};

use crate::clock::Clock;

/// The role of a core that runs an engine, in the header's table of cores.
const ENGINE: &str = "engine";

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

impl Names {
    /// Takes the names of a header, of which a trace may have several. Returns its clock.
    pub fn take(&mut self, header: &Header<'_>) -> Clock {
        let stream::Clock { tsc_khz, wall, tsc } = header.clock;
        let ticks = Clock::new(tsc_khz, None);
        let wall_at_zero =
            (wall != 0).then(|| wall.saturating_mul(1_000_000_000).saturating_sub(ticks.nanoseconds(tsc)));
        for name in header.names() {
            self.add(name.table, name.number, name.belongs_to, clean(name.name));
        }
        Clock::new(tsc_khz, wall_at_zero)
    }

    fn add(&mut self, table: u8, number: u32, belongs_to: Option<u32>, name: String) {
        let names = self;
        let small = u8::try_from(number);
        let of = |wanted: Table| table == wanted as u8;
        if of(Table::Core) {
            match belongs_to {
                Some(engine) if name == ENGINE => names.engines.insert(number, engine),
                _ => None,
            };
            names.cores.insert(number, name);
        } else if of(Table::Device) {
            let guest = belongs_to.and_then(|guest| u8::try_from(guest).ok());
            names.devices.insert((number >> 16, number & 0xffff), Device { guest, name });
        } else if let Ok(number) = small {
            let table = match () {
                () if of(Table::Guest) => &mut names.guests,
                () if of(Table::Reason) => &mut names.reasons,
                () if of(Table::Kind) => &mut names.kinds,
                () if of(Table::State) => &mut names.states,
                () if of(Table::Cause) => &mut names.causes,
                () if of(Table::Stop) => &mut names.stops,
                () => return,
            };
            table.insert(number, name);
        }
    }

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

    /// The device in a slot of the engine on a core, or the uplink there. `None`: the trace has not named it.
    #[must_use]
    pub fn port(&self, core: u32, slot: u16) -> Option<&Device> {
        self.in_slot(core, slot.into())
    }

    fn in_slot(&self, core: u32, slot: u32) -> Option<&Device> {
        self.engines.get(&core).and_then(|&engine| self.devices.get(&(engine, slot)))
    }

    /// The device in a slot of the engine on a core, with its guest.
    #[must_use]
    pub fn device(&self, core: u32, slot: u32) -> String {
        let Some(device) = self.in_slot(core, slot) else { return format!("slot {slot}") };
        let owner = device.guest.map(|guest| self.guest(guest));
        match (owner, device.name.as_str()) {
            (Some(guest), "") => format!("{guest} slot {slot}"),
            (Some(guest), name) => format!("{guest} {name}"),
            (None, "") => format!("slot {slot}"),
            (None, name) => name.to_owned(),
        }
    }
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

/// How many records of a core are missing before number `first`. `next`: the number that was expected. `lost`: how many the core
/// says were lost.
#[must_use]
pub fn missing(next: Option<&u64>, first: u64, lost: u64) -> u64 {
    match next {
        // A gap is what the core says was lost, and what was lost on the way.
        Some(&next) if first >= next => first.saturating_sub(next),
        // The first block of the core, or its numbers began again: the machine was restarted.
        _ => lost,
    }
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
}
