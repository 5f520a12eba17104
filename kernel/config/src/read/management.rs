//! Reads `[management]`, and gives the guest that it names its ports.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use control::Permissions;
use toml::de::DeTable;

use crate::config::Config;
use crate::guest::{Console, GuestDevice, Restart};
use crate::limits::{MAX_CONSOLE_PORTS, MAX_DEVICES, MAX_PUT};
use crate::management::{CONTROL_PORT, Management, TRACE_PORT};
use crate::mistake::{Mistake, Source};
use crate::section::Section;
use crate::size;

/// Reads `[management]`. The guests are read later.
pub(crate) fn read(source: Source<'_>, table: &DeTable<'_>, span: Range<usize>) -> (Option<Management>, Vec<Mistake>) {
    let mut section = Section::new(source, table, span, "[management]", &["guest", "allow", "modules"]);
    let guest = section.string("guest", "the name of a guest");
    if !section.has("guest") {
        let place = section.place();
        section.complain_at(&place, "[management] needs `guest`: the name of a guest");
    }
    // A mistake does not open what somebody wanted to close.
    let allow = section.permissions("allow").unwrap_or(Permissions::VIEW);
    let modules = read_modules(&mut section);
    let management = guest.map(|(guest, place)| Management { guest: guest.into(), allow, modules, place });
    (management, section.mistakes)
}

/// Reads `modules`: bytes.
fn read_modules(section: &mut Section<'_, '_>) -> u64 {
    let Some((text, place)) = section.string("modules", "a size like \"64M\"") else { return 0 };
    match size::parse(text) {
        Some(bytes) if (1 << 20..=MAX_PUT).contains(&bytes) => return bytes,
        Some(_) => {
            let most = size::show(MAX_PUT);
            section.complain_at(&place, format!("expected a size from 1M to {most}"));
        }
        None => section.complain_at(&place, "expected a size like \"64M\""),
    }
    0
}

/// Gives the management guest its ports, and has it start again whenever it ends. If that is not possible there is no
/// management. `named`: names of all guests of the file, also of those with mistakes.
pub(crate) fn apply(config: &mut Config, named: &[&str]) -> Option<Mistake> {
    let management = config.management.take()?;
    let Some(guest) = config.guests.iter_mut().find(|guest| guest.name == management.guest) else {
        if named.contains(&&*management.guest) {
            // The mistake in its entry is told.
            return None;
        }
        let names: Vec<&str> = config.guests.iter().map(|guest| &*guest.name).collect();
        let message = match control::nearest(&management.guest, names.iter().copied()) {
            Some(meant) => format!("no guest has this name; did you mean \"{meant}\"?"),
            None if names.is_empty() => "no guest has this name; there is none".into(),
            None => format!("no guest has this name; there are: {}", names.join(", ")),
        };
        return Some(Mistake::new(&config.file, &management.place, message));
    };
    if guest.spare {
        return Some(Mistake::new(&config.file, &management.place, "this guest is spare; expected one that starts"));
    }
    let is_full = guest.devices.len() >= MAX_DEVICES;
    let console = guest.devices.iter_mut().find_map(|device| match device {
        GuestDevice::Console(console) => Some(console),
        _ => None,
    });
    let ports = [CONTROL_PORT, TRACE_PORT].map(String::from);
    match console {
        Some(console) if console.ports.is_empty() => console.ports.extend(ports),
        Some(console) => {
            let message = format!(
                "expected no `ports`: it is the management guest, and {CONTROL_PORT} and {TRACE_PORT} are the \
                 {MAX_CONSOLE_PORTS} that a console device can have"
            );
            return Some(Mistake::new(&config.file, &console.place, message));
        }
        None if !is_full => {
            guest.devices.push(GuestDevice::Console(Console { ports: ports.into(), place: management.place.clone() }));
        }
        None => {
            let message =
                format!("this guest has {MAX_DEVICES} devices; expected room for the console device it needs");
            return Some(Mistake::new(&config.file, &management.place, message));
        }
    }
    guest.restart = Restart::Always;
    config.management = Some(management);
    None
}

#[cfg(test)]
mod tests;
